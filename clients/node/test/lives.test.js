'use strict'
// Workers, connections and servers come to an end, and no job is lost or has its effect twice.

const assert = require('node:assert')
const { spawn } = require('node:child_process')
const { once } = require('node:events')
const fs = require('node:fs')
const path = require('node:path')
const { test } = require('node:test')
const { Client } = require('pg')
const { Worker, enqueue, enqueueMany } = require('..')
const { Gone, Link, Pool } = require('../lib/connection')
const { Server } = require('../lib/testing')
const { SCHEMA, database, quiet, until } = require('./support')

const db = database()

// Starts a worker's process, which must not outlive the test.
function start (t, options = {}) {
  const program = [path.join(__dirname, 'process.js'), JSON.stringify(db.config), JSON.stringify(options)]
  const child = spawn(process.execPath, program, { stdio: ['ignore', 'ignore', 'ignore'] })
  const ended = once(child, 'exit')
  t.after(() => child.kill('SIGKILL'))
  return { kill: (signal) => child.kill(signal), ended: async () => { const [status, signal] = await ended; return status ?? signal } }
}

const progress = (job) => db.one('SELECT progress FROM queue.job($1)', [job])

const effect = (job) => job.transaction(async (client) => {
  await client.query('INSERT INTO effect VALUES ($1, $2)', [job.jobId, job.attempt])
})

test('SIGTERM ends an idle worker at once', async (t) => {
  const child = start(t)
  const sleeps = "SELECT count(*)::int FROM pg_stat_activity WHERE query ~ 'claim_any' AND state = 'active' AND pid <> pg_backend_pid()"
  await until('it waits', () => db.one(sleeps))
  const begun = Date.now()
  child.kill('SIGTERM')
  assert.equal(await child.ended(), 0)
  assert.ok(Date.now() - begun < 5000, 'the wait of ten seconds was not cancelled')
})

test('SIGTERM finishes what runs and gives back the rest', async (t) => {
  const [short, ...ahead] = await enqueueMany(db.client, 'a', Array(4).fill({ seconds: 1 }))
  const child = start(t, { concurrency: 1, prefetch: 3 })
  await until('the first one runs', async () => await progress(short) === 'begun')
  child.kill('SIGTERM')
  assert.equal(await child.ended(), 0)
  assert.equal(await db.state(short), 'completed')
  for (const job of ahead) assert.equal(await db.one("SELECT attempt FROM queue.job($1) WHERE state = 'ready'", [job]), 1)
})

for (const deaf of [false, true]) {
  test(`what does not end in time is given back, ${deaf ? 'deaf' : 'heeding'}`, async (t) => {
    const job = await enqueue(db.client, 'a', { seconds: 60, deaf })
    const child = start(t, { shutdownTimeout: 200 })
    await until('it runs', async () => await progress(job) === 'begun')
    child.kill('SIGTERM')
    assert.equal(await child.ended(), 0)
    assert.equal(await db.one("SELECT attempt FROM queue.job($1) WHERE state = 'ready'", [job]), 1)
  })
}

for (const deaf of [false, true]) {
  test(`a second SIGTERM ends the wait, ${deaf ? 'deaf' : 'heeding'}`, async (t) => {
    const job = await enqueue(db.client, 'a', { seconds: 60, deaf })
    const child = start(t)
    await until('it runs', async () => await progress(job) === 'begun')
    child.kill('SIGTERM')
    const idle = "SELECT count(*) = 0 FROM pg_stat_activity WHERE query ~ 'claim_any' AND state = 'active' AND pid <> pg_backend_pid()"
    await until('it claims no more', () => db.one(idle))
    child.kill('SIGTERM')
    assert.equal(await child.ended(), 0)
    assert.equal(await db.one("SELECT attempt FROM queue.job($1) WHERE state = 'ready'", [job]), 1)
  })
}

test('a worker without progress ends its process', async (t) => {
  let job = await enqueue(db.client, 'a', { seconds: 60, deaf: true })
  let child = start(t, { concurrency: 1, heartbeat: 100, stallTimeout: 500 })
  await until('it runs', async () => await progress(job) === 'begun')
  await db.client.query('SELECT queue.cancel($1, force => true)', [job])
  assert.equal(await child.ended(), 70)
  job = await enqueue(db.client, 'loop', { seconds: 60 })
  child = start(t, { stallTimeout: 500 })
  await until('it runs', async () => await progress(job) === 'begun')
  assert.equal(await child.ended(), 'SIGKILL')
})

test("a killed worker's jobs run again", async (t) => {
  const job = await enqueue(db.client, 'b', { seconds: 1 }) // a lease of one second
  const child = start(t)
  await until('it runs', async () => await progress(job) === 'begun')
  child.kill('SIGKILL')
  await child.ended()
  start(t)
  await db.waitState(job, 'completed')
  assert.deepEqual((await db.client.query('SELECT attempt FROM effect')).rows, [{ attempt: 2 }])
})

test('connections that end under running handlers', async () => {
  const ids = await enqueueMany(db.client, 'b', Array(300).fill({}))
  const worker = new Worker(db.config, { concurrency: 4, prefetch: 4, heartbeat: 200, logger: quiet }).handle('b', effect)
  await db.running(worker, async () => {
    for (const share of [30, 90, 150]) {
      await until('some have been done', async () => (await db.effects()).length > share)
      await db.client.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
    }
    await until('all are completed', () => db.one("SELECT bool_and(state = 'completed') FROM queue.jobs"), 60000)
  })
  assert.deepEqual(await db.effects(), ids)
})

const TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"

// The claims take completions along when their connections end: each is told once more, and counts once. What was claimed on
// such a connection is given back, so that no lease has to end.
test('connections that end while completions are gathered', async () => {
  const ids = await enqueueMany(db.client, 'a', Array(6000).fill({}))
  const worker = new Worker(db.config, { concurrency: 20, prefetch: 100, sessionBound: true, logger: quiet }).handle('a', () => {})
  const done = () => db.one("SELECT count(*)::int FROM queue.jobs WHERE state = 'completed'")
  await db.running(worker, async () => {
    for (const share of [300, 1500, 3000]) {
      await until('some have been done', async () => await done() > share)
      await db.client.query(TERMINATE)
    }
    await until('all are completed', async () => await done() === ids.length)
  })
  assert.equal(await db.one("SELECT count(*)::int FROM queue.attempts WHERE state = 'completed'"), ids.length)
})

test('a lease that is lost while completions are gathered', async () => {
  const ids = await enqueueMany(db.client, 'a', Array(20).fill({}))
  const lost = []
  let goesOn = false
  const worker = new Worker(db.config, { concurrency: 20, heartbeat: 60000, logger: quiet })
    .on('lost', (event) => lost.push(event.jobId)).handle('a', () => until('it may go on', () => goesOn).then(() => {}))
  await db.running(worker, async () => {
    await until('all run', () => db.one("SELECT bool_and(state = 'running') FROM queue.jobs"))
    await db.client.query('SELECT queue.cancel($1, force => true)', [ids[7]])
    goesOn = true
    await until('all have ended', () => db.one('SELECT bool_and(finished_at IS NOT NULL) FROM queue.jobs'))
    await until('it is told', () => lost.length)
  })
  assert.deepEqual(lost, [ids[7]])
})

test('several hosts and a promotion', async (t) => {
  const primary = new Server()
  t.after(() => primary.close())
  const standby = new Server({ settings: { hot_standby: 'on' } })
  t.after(() => standby.close())
  const name = await primary.createDatabase()
  let client = await primary.connect(name)
  await client.query(SCHEMA)
  primary.baseBackup(standby)
  const worker = new Worker([standby.config(name), primary.config(name)], { logger: quiet }).handle('a', () => {})
  const works = async () => {
    const job = await enqueue(client, 'a')
    const state = async () => (await client.query('SELECT state FROM queue.job($1)', [job])).rows[0].state
    await until('it is done', async () => await state() === 'completed')
    await client.end()
  }
  await db.running(worker, async () => {
    await works()
    primary.stop('immediate')
    standby.promote()
    client = await standby.connect(name)
    await works()
  })
})

// All of the server's processes stand still: its connections are there, and nobody answers. The first one stops first and
// goes on last: it would start others, and remove those that have ended, meanwhile.
async function silence (t, server) {
  const first = fs.readFileSync(path.join(server.data, 'postmaster.pid'), 'utf8').split('\n')[0]
  const kill = (pid, signal) => process.kill(Number(pid), signal)
  kill(first, 'SIGSTOP')
  await until('it stands still', () => fs.readFileSync(`/proc/${first}/stat`, 'utf8').split(') ')[1][0] === 'T')
  const children = fs.readFileSync(`/proc/${first}/task/${first}/children`, 'utf8').trim().split(' ')
  for (const pid of children) kill(pid, 'SIGSTOP')
  t.after(() => { for (const pid of [...children, first]) kill(pid, 'SIGCONT') })
}

for (const busy of [false, true]) {
  test(`a worker ends without a server that answers, ${busy ? 'busy' : 'idle'}`, async (t) => {
    const job = busy && await enqueue(db.client, 'a', { seconds: 60 })
    const child = start(t, { concurrency: 2, heartbeat: 100 })
    const sleeps = "SELECT count(*)::int FROM pg_stat_activity WHERE query ~ 'claim_any' AND state = 'active' AND pid <> pg_backend_pid()"
    await until('it waits', async () => await db.one(sleeps) && (!busy || await db.state(job) === 'running'))
    await silence(t, db.server)
    const begun = Date.now()
    child.kill('SIGTERM')
    child.kill('SIGINT')
    assert.equal(await child.ended(), 0)
    assert.ok(Date.now() - begun < 40000)
  })
}

test('a server that falls silent is left for another', async (t) => {
  const other = new Server()
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

test('what a handler asks may take as long as it takes', async (t) => {
  const pool = new Pool([db.config])
  t.after(() => pool.close())
  assert.ok(await pool.use((client) => !client.connectionParameters.query_timeout))
})

test('a backend that is killed takes all others along', async () => {
  const job = await enqueue(db.client, 'a')
  const worker = new Worker(db.config, { logger: quiet }).handle('a', (job) => job.transaction(async (client) => {
    await client.query('INSERT INTO effect VALUES ($1, $2)', [job.jobId, job.attempt])
    const { rows: [{ pid }] } = await client.query('SELECT pg_backend_pid() AS pid')
    if (job.attempt === 1) process.kill(pid, 'SIGKILL')
    await client.query('SELECT 1')
  }))
  await db.running(worker, async () => {
    await until('the server has gone down', () => db.client.query('SELECT 1').then(() => false, () => true))
    await db.again()
    await db.waitState(job, 'completed')
  })
  assert.deepEqual((await db.client.query('SELECT attempt FROM effect')).rows, [{ attempt: 2 }])
})

for (const mode of ['fast', 'immediate']) {
  test(`a restart under load, ${mode}`, async () => {
    const ids = await enqueueMany(db.client, 'b', Array(400).fill({}))
    const hosts = [{ ...db.config, host: '/nowhere' }, db.config] // the first of several hosts that takes writes
    const worker = new Worker(hosts, { concurrency: 4, prefetch: 10, logger: quiet }).handle('b', effect)
    await db.running(worker, async () => {
      await until('some have been done', async () => (await db.effects()).length > 50)
      db.server.stop(mode)
      db.server.start()
      await db.again()
      await until('all are completed', () => db.one("SELECT bool_and(state = 'completed') FROM queue.jobs"), 60000)
    })
    assert.deepEqual(await db.effects(), ids)
  })
}

for (const mode of ['transaction', 'session']) {
  test(`behind PgBouncer, ${mode} mode`, async (t) => {
    const program = ['/usr/sbin/pgbouncer', '/usr/bin/pgbouncer', '/usr/local/bin/pgbouncer'].find((file) => fs.existsSync(file))
    assert.ok(program, 'there is no PgBouncer: run `make clients`, or as root: apt-get install pgbouncer')
    const file = path.join(db.server.dir, 'pgbouncer.ini')
    fs.writeFileSync(file, `[databases]\n* = host=${db.server.dir} port=5432 user=postgres\n[pgbouncer]\nlisten_port = 6432\n` +
      `unix_socket_dir = ${db.server.dir}\nauth_type = any\npool_mode = ${mode}\ndefault_pool_size = 8\n` +
      'server_round_robin = 1\nserver_reset_query_always = 1\n')
    const account = process.geteuid() === 0 ? ['--user=postgres'] : []
    const start = () => spawn(program, ['--quiet', ...account, file], { stdio: 'ignore' })
    let pooler = start()
    let ended = once(pooler, 'exit')
    t.after(async () => {
      assert.equal(pooler.exitCode, null, 'PgBouncer has ended by itself')
      pooler.kill('SIGKILL')
      await ended
    })
    const pooled = { ...db.config, port: 6432 }
    await until('it takes connections', async () => {
      const client = new Client(pooled)
      return client.connect().then(() => client.end()).then(() => true, () => false)
    })
    const ids = await enqueueMany(db.client, 'b', Array(100).fill({}))
    const worker = new Worker(pooled, { concurrency: 3, heartbeat: 100, sessionBound: mode === 'session', logger: quiet })
      .handle('b', effect).handle('a', (job) => once(job.signal, 'abort').then(() => job.check()))
    let begun
    await db.running(worker, async () => {
      await until('some have been done', async () => (await db.effects()).length > 30)
      pooler.kill('SIGKILL') // and it comes back
      await ended
      fs.rmSync(path.join(db.server.dir, '.s.PGSQL.6432'))
      pooler = start()
      ended = once(pooler, 'exit')
      await until('all have been done', async () => (await db.effects()).length === 100)
      const job = await enqueue(db.client, 'a')
      await db.waitState(job, 'running')
      await db.client.query('SELECT queue.cancel($1)', [job])
      await db.waitState(job, 'cancelled')
      begun = Date.now()
    })
    assert.ok(Date.now() - begun < 5000, 'the waiting claim was not cancelled')
    assert.deepEqual(await db.effects(), ids)
  })
}
