'use strict'
// The parts of producers and workers that only Node has: thrown values, signals of batches, middleware, intervals, the
// helpers for tests, servers that do not answer. clients/conformance tests the promises of all packages.

const assert = require('node:assert')
const { AsyncLocalStorage } = require('node:async_hooks')
const { execFileSync, spawn } = require('node:child_process')
const { once } = require('node:events')
const fs = require('node:fs')
const os = require('node:os')
const path = require('node:path')
const { test } = require('node:test')
const { defaults, types } = require('pg')
const { RetryIn, Snooze, Worker, enqueue, enqueueMany } = require('..')
const { Gone, Link, Pool } = require('../lib/connection')
const testing = require('../lib/testing')
const { database, quiet, until } = require('./support')

const db = database()
const worker = (options) => new Worker(db.config, { logger: quiet, ...options })

test('only its own transaction finds an uncommitted job', async () => {
  const producer = await db.server.connect(db.name)
  await producer.query('BEGIN')
  await enqueue(producer, 'a', { n: 1 })
  await testing.assertEnqueued(producer, 'a', { n: 1 }, { count: 1 })
  await testing.refuteEnqueued(producer, 'a', { n: 2 })
  await testing.refuteEnqueued(db.client, 'a')
  await assert.rejects(testing.assertEnqueued(producer, 'a', { n: 2 }), /0 found. It has: ready {"n":1}/)
  await producer.query('ROLLBACK')
  await producer.end()
})

test('options are dates, texts of intervals and milliseconds', async () => {
  const runAt = new Date(Date.now() + 3600000)
  const job = await enqueue(db.client, 'a', {}, { runAt, uniqueKey: 'k', uniqueFor: '1 minute', lease: 120000 })
  const { rows: [row] } = await db.client.query('SELECT * FROM queue.job($1)', [job])
  assert.deepEqual(row.run_at, runAt)
  await db.client.query('SELECT queue.reschedule($1, now())', [job])
  const lease = await db.one(
      "SELECT extract(epoch FROM lease_expires_at - clock_timestamp())::float8 FROM queue.claim('a')")
  assert.ok(lease > 60 && lease <= 120, lease)
  const delayed = await enqueue(db.client, 'a', {}, { delay: 500 })
  assert.equal(await db.one("SELECT run_at - enqueued_at = '500 ms' FROM queue.job($1)", [delayed]), true)
})

test('middleware wraps handlers, but no handlers of batches', async () => {
  const parent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
  const job = await enqueue(db.client, 'a', {}, { headers: { traceparent: parent } })
  await enqueue(db.client, 'b')
  const said = []
  await worker()
    .use(async (job, call) => { said.push('outer'); return { outer: await call(job) } })
    .use((job, call) => { said.push('inner'); return call(job) })
    .handle('a', (job) => job.traceparent)
    .handleBatch('b', 2, (batch) => { said.push(batch.length, [...batch][0] === batch.jobs[0]) })
    .drain()
  assert.deepEqual(said.filter((one) => typeof one === 'string'), ['outer', 'inner'])
  assert.deepEqual(said.filter((one) => typeof one !== 'string'), [1, true])
  assert.deepEqual(await db.one('SELECT result FROM queue.job($1)', [job]), { outer: parent })
})

test('any thrown value fails its attempt', async (t) => {
  t.mock.method(console, 'error', () => {}) // the log of a worker without a logger
  const round = {}
  round.round = round
  let reads = 0
  const changing = { get stack () { if (reads++) throw new Error('second'); return 'x' } }
  const odd = [undefined, null, 7, 'text', Symbol('odd'), Object.create(null),
      new AggregateError([new Error('one')], 'several'),
    { code: '42P01' }, new DOMException('gone', 'AbortError'),
    new Proxy({}, { get () { throw new Error('odd') } }), new Proxy({}, { getPrototypeOf () { throw null } }),
    { get name () { throw new Error('odd') } }, { stack: 10n }, Object.assign(new Error('round'), { stack: round }),
    Object.assign(new RetryIn(5), { delay: {} }), Object.assign(new Snooze(5), { delay: NaN }), changing]
  const jobs = []
  for (const n of odd.keys()) jobs.push(await enqueue(db.client, 'a', { n }, { maxAttempts: 1 }))
  await new Worker(db.config, { trace: true }).handle('a', (job) => { throw odd[job.payload.n] }).drain()
  const states = await Promise.all(jobs.map(db.state))
  assert.deepEqual(states, odd.map(() => 'dead'))
  const error = await db.one('SELECT error FROM queue.job($1)', [jobs.at(-2)])
  assert.match(error, /cannot be used: delay is a number of milliseconds, or a text .*, not NaN/)
})

for (const [how, fail] of [['throws', () => { throw new Error('log') }],
  ['rejects', async () => { throw new Error('log') }]]) {
  test(`a logger that ${how} lets the attempt end`, async () => {
    const job = await enqueue(db.client, 'a', {}, { maxAttempts: 1 })
    const logger = { debug: fail, info: fail, warn: fail, error: fail }
    await worker({ logger }).handle('a', () => { throw new Error('x') }).drain()
    assert.equal(await db.one('SELECT error FROM queue.job($1)', [job]), 'Error: x')
  })
}

test('a result whose then cannot be read fails its job', async () => {
  const job = await enqueue(db.client, 'a', {}, { maxAttempts: 1 })
  await worker().handle('a', () => ({ get then () { throw new Error('odd') } })).drain()
  assert.equal(await db.one('SELECT error FROM queue.job($1)', [job]), 'Error: odd')
})

test('values that a handler sets with enterWith stay in its job', async () => {
  const [tenant, seen] = [new AsyncLocalStorage(), []]
  await enqueueMany(db.client, 'a', [1, 2, 3, 4])
  await tenant.run('worker', () => worker({ concurrency: 1, prefetch: 4 }).handle('a', ({ payload }) => {
    seen.push(tenant.getStore())
    tenant.enterWith(payload)
    return payload % 2 ? undefined : Promise.resolve()
  }).drain())
  assert.deepEqual(seen, ['worker', 'worker', 'worker', 'worker'])
})

test('values that a listener sets with enterWith stay in it', async () => {
  const [tenant, seen] = [new AsyncLocalStorage(), []]
  await enqueueMany(db.client, 'a', [1, 2, 3, 4])
  const own = worker({ concurrency: 1 }).handle('a', ({ payload }) => {
    seen.push(tenant.getStore())
    return payload % 2 ? undefined : Promise.resolve()
  })
  for (const kind of ['connected', 'started', 'completed']) own.on(kind, () => tenant.enterWith(kind))
  await tenant.run('worker', async () => {
    await own.drain()
    seen.push(tenant.getStore())
  })
  assert.deepEqual(seen, Array(5).fill('worker'))
})

test('whatever a listener throws, the job ends', async () => {
  const changing = { get message () { throw new Error('odd') } }
  const job = await enqueue(db.client, 'a')
  const own = worker().handle('a', () => {})
  for (const [kind, odd] of [['connected', null], ['started', undefined], ['completed', changing]]) {
    own.on(kind, () => { throw odd })
  }
  await own.drain()
  assert.equal(await db.state(job), 'completed')
})

test('a listener hears of jobs that end after it was set', async () => {
  const heard = []
  const jobs = await enqueueMany(db.client, 'a', [1, 2])
  const late = worker({ concurrency: 1 }).handle('a', ({ payload }) => {
    const hear = ({ jobId }) => heard.push(jobId)
    if (payload === 1) late.on('started', hear).on('completed', hear)
    else late.stop()
  })
  await late.serve()
  assert.deepEqual(heard.sort(), [jobs[0], jobs[1], jobs[1]])
})

test('the parts of a job are its own properties', async () => {
  await enqueue(db.client, 'a', { n: 1 })
  let copy
  await worker().handle('a', (job) => { copy = { ...job } }).drain()
  assert.deepEqual(copy.payload, { n: 1 })
  assert.ok(copy.enqueuedAt instanceof Date)
})

test('advanceTime makes jobs ready', async () => {
  const [soon, late] = [await enqueue(db.client, 'a', {}, { delay: '1 hour' }),
      await enqueue(db.client, 'a', {}, { delay: '2 hours' })]
  assert.deepEqual(await testing.advanceTime(db.client, '1 hour'), [soon])
  const events = await worker().handle('a', () => {}).drain()
  assert.deepEqual(events.filter((event) => event.kind === 'completed').map((event) => event.jobId), [soon])
  assert.deepEqual(await testing.advanceTime(db.client, '1 hour', 'b'), [])
  assert.deepEqual(await testing.advanceTime(db.client, '1 hour'), [late])
})

test('times are read in any DateStyle', async () => {
  const role = `dates_${db.name}`
  await db.client.query(`CREATE ROLE ${role} SUPERUSER LOGIN; ALTER ROLE ${role} SET DateStyle = 'German, DMY'`)
  const job = await enqueue(db.client, 'a')
  let seen
  await new Worker({ ...db.config, user: role }, { logger: quiet })
    .handle('a', ({ enqueuedAt }) => { seen = enqueuedAt }).drain()
  const sql = 'SELECT (extract(epoch FROM enqueued_at) * 1000)::bigint::text FROM queue.job($1)'
  assert.ok(Math.abs(seen.getTime() - Number(await db.one(sql, [job]))) <= 1, seen)
})

for (const hours of [-1, 1]) {
  test(`leases are extended though the system clock jumps by ${hours} hours`, async (t) => {
    const now = Date.now
    let jump = 0
    t.mock.method(Date, 'now', () => now.call(Date) + jump)
    const jobs = [await enqueue(db.client, 'b'), await enqueue(db.client, 'b')]
    const busy = worker({ concurrency: 2, shutdownTimeout: 100, stallTimeout: 60000 }).handle('b', (job) => {
      if (job.jobId === jobs[1]) return // its end is sent after the jump
      jump = hours * 3600000
      return new Promise(() => {}) // never
    })
    const running = busy.run()
    await until('the leases are extended', () => db.one(`SELECT lease_expires_at > claimed_at + interval '3 seconds'
      FROM queue.job($1)`, [jobs[0]]))
    assert.equal(await db.state(jobs[1]), 'completed')
    busy.stop()
    await running
    assert.equal(await db.one('SELECT attempt::text FROM queue.job($1)', [jobs[0]]), '1')
  })
}

test('a job that its handler has completed is not reported as lost', async () => {
  const job = await enqueue(db.client, 'a')
  // The worker thinks that the lease is lost, as after a long pause of its process. The server has not ended it.
  const events = await worker().handle('a', (own) => own.transaction(async () => own.stop('lost'))).drain()
  assert.equal(await db.state(job), 'completed')
  assert.deepEqual(events.map(({ kind }) => kind).filter((kind) => /lost|completed/.test(kind)), ['completed'])
})

// Returns a pipe that is full and has no reader.
function unread (t) {
  const fifo = path.join(fs.mkdtempSync(path.join(os.tmpdir(), 'pg_queue-')), 'log')
  t.after(() => fs.rmSync(path.dirname(fifo), { recursive: true }))
  execFileSync('mkfifo', [fifo])
  const { O_RDWR, O_WRONLY, O_NONBLOCK } = fs.constants
  const end = fs.openSync(fifo, O_RDWR | O_NONBLOCK)
  t.after(() => fs.closeSync(end))
  assert.throws(() => { for (;;) fs.writeSync(end, Buffer.alloc(1 << 16)) }, { code: 'EAGAIN' })
  return fs.openSync(fifo, O_WRONLY)
}

for (const [log, open] of [['a log', () => 'ignore'], ['a full disk', () => fs.openSync('/dev/full', 'w')],
  ['a log without a reader', unread]]) {
  test(`a handler that blocks the event loop ends its process: ${log}`, async (t) => {
    await enqueue(db.client, 'loop')
    const program = `const { Worker } = require(${JSON.stringify(path.join(__dirname, '..'))})
      new Worker(${JSON.stringify(db.config)}, { stallTimeout: 500 }).handle('loop', () => { for (;;); }).run()`
    const stderr = open(t)
    if (stderr !== 'ignore') t.after(() => fs.closeSync(stderr))
    const child = spawn(process.execPath, ['-e', program], { stdio: ['ignore', 'ignore', stderr] })
    t.after(() => child.kill('SIGKILL'))
    assert.deepEqual(await once(child, 'exit'), [null, 'SIGKILL'])
  })
}

// Stops all processes of the server: its connections stay open, and it answers none. The postmaster stops first and
// goes on last. Otherwise it would start and remove processes meanwhile.
async function silence (t, server) {
  const first = fs.readFileSync(path.join(server.data, 'postmaster.pid'), 'utf8').split('\n')[0]
  const kill = (pid, signal) => process.kill(Number(pid), signal)
  kill(first, 'SIGSTOP')
  await until('it has stopped', () => fs.readFileSync(`/proc/${first}/stat`, 'utf8').split(') ')[1][0] === 'T')
  const children = fs.readFileSync(`/proc/${first}/task/${first}/children`, 'utf8').trim().split(' ')
  for (const pid of children) kill(pid, 'SIGSTOP')
  t.after(() => { for (const pid of [...children, first]) kill(pid, 'SIGCONT') })
}

test('a link leaves a server that does not answer', async (t) => {
  const other = new testing.Server()
  t.after(() => other.close())
  const hosts = [db.config, other.config()].map((config) => ({ ...config, connectionTimeoutMillis: 500 }))
  const link = new Link(hosts, () => {}, 2000)
  t.after(() => link.close())
  const where = async () => (await link.fetch("SELECT current_setting('unix_socket_directories') AS dir"))[0].dir
  assert.equal(await where(), db.server.dir)
  await silence(t, db.server)
  await assert.rejects(where(), Gone)
  assert.equal(await where(), other.dir)
  link.sever()
  await assert.rejects(where(), Gone)
})

test('a statement of a handler has no time limit', async (t) => {
  const pool = new Pool([db.config])
  t.after(() => pool.close())
  assert.ok(await pool.use((client) => !client.connectionParameters.query_timeout))
})

test('a stop before the run ends one run', async () => {
  const idle = worker().handle('a', () => {})
  idle.stop()
  await idle.serve()
  const job = await enqueue(db.client, 'a')
  await idle.drain()
  assert.equal(await db.one('SELECT state FROM queue.job($1)', [job]), 'completed')
})

test('a timeout does not keep the process when its handler has not begun', async () => {
  const timers = () => process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length
  await enqueue(db.client, 'a', {}, { maxAttempts: 1 })
  const codec = { encode: (value) => value, decode: () => { throw new Error('it cannot be read') } }
  const before = timers()
  await worker({ codec, timeout: 3600000 }).handle('a', () => {}).drain()
  assert.equal(timers(), before)
})

// What the application may have changed in pg, and how it takes that back.
const CHANGES = {
  'parsers of types' () {
    const oids = ['BOOL', 'FLOAT8', 'INT4', 'TEXT'].map((name) => types.builtins[name])
    const before = oids.map((oid) => types.getTypeParser(oid))
    for (const oid of oids) types.setTypeParser(oid, (text) => ({ text }))
    return () => { for (const [n, oid] of oids.entries()) types.setTypeParser(oid, before[n]) }
  },
  'binary answers' () {
    defaults.binary = true
    return () => { defaults.binary = false }
  }
}

for (const [what, change] of Object.entries(CHANGES)) {
  test(`a worker runs jobs whatever the application has set: ${what}`, async () => {
    const jobs = await enqueueMany(db.client, 'a', [1, 2], { maxAttempts: 1 })
    const own = worker({ timeout: 5000 })
      .handle('a', async (job) => {
        await job.step('one', () => 5)
        assert.deepEqual(await job.inputs(), [])
        if (job.payload === 2) throw new Error('two')
      })
    const undo = change()
    const events = await own.drain().finally(undo)
    assert.deepEqual(events.filter(({ kind }) => /completed|failed/.test(kind)).map(({ kind }) => kind).sort(),
        ['completed', 'failed'])
    assert.deepEqual(await Promise.all(jobs.map(db.state)), ['completed', 'dead'])
  })
}
