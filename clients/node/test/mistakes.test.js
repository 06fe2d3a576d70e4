'use strict'
// Mistakes of users, and their errors: a function that makes a mistake, and a pattern for the error that it throws.

const assert = require('node:assert')
const { once } = require('node:events')
const { test } = require('node:test')
const { runInNewContext } = require('node:vm')
const { Pool } = require('pg')
const queue = require('..')
const { Snooze, Suspend, Worker, enqueue, enqueueFlow, enqueueMany, enqueueQuery, publish } = queue
const { database, quiet } = require('./support')

const db = database()
const client = { query () { throw new Error('a mistake must not get here') } }
const job = (options) => enqueue(client, 'a', {}, options)
const worker = (options) => new Worker({}, options)
const made = () => new Worker({})

const CLIENT = /the first argument is a client or a pool of pg, not .*: for other drivers there are enqueueQuery, /
const LENGTH = /is a number of milliseconds, or a text such as '5 minutes', not /

const MISTAKES = [
  // Connections.
  [() => enqueue('emails', { to: 'a' }), CLIENT],
  [() => enqueue(null, 'emails'), CLIENT],
  [() => enqueue(() => {}, 'emails'), CLIENT], // such as `sql` of postgres.js, or knex
  [() => enqueueMany({}, 'a', []), CLIENT],
  [() => publish(undefined, 't'), CLIENT],
  [() => enqueueFlow(7, 'a'), CLIENT],
  // Queues and payloads.
  [() => enqueue(client, 7), /queue is a text, not 7/],
  [() => enqueue(client, ['a']), /queue is a text, not an array/],
  [() => enqueue(client), /queue is a text, not undefined/],
  [() => publish(client, { topic: 't' }), /topic is a text, not of type Object/],
  [() => enqueue(client, 'a', undefined), /a payload cannot be undefined: leave it out for \{\}, or use null/],
  [() => enqueue(client, 'a', undefined, { priority: 1 }), /a payload cannot be undefined/],
  [() => enqueue(client, 'a', () => {}), /a payload cannot be function/],
  [() => enqueue(client, 'a', Symbol('a')), /a payload cannot be symbol/],
  [() => enqueue(client, 'a', new Map([['to', 'a']])), /a payload cannot be a Map: give Object.fromEntries\(map\)/],
  [() => enqueue(client, 'a', new Set([1])), /a payload cannot be a Set: give \[\.\.\.set\]/],
  [() => enqueue(client, 'a', [1].values()), /a payload cannot be an iterator: give \[\.\.\.iterator\]/],
  [() => enqueueMany(client, 'a', [{}, undefined]), /a payload cannot be undefined/],
  [() => enqueueMany(client, 'a', { a: 1 }), /payloads is an array of payloads, not of type Object/],
  [() => enqueueMany(client, 'a', 'abc'), /payloads is an array of payloads, not the text 'abc'/],
  [() => enqueueMany(client, 'a', null), /payloads is an array of payloads, not null/],
  [() => publish(client, 't', undefined), /a payload cannot be undefined/],
  [() => enqueueQuery('a', undefined), /a payload cannot be undefined/],
  // Options.
  [() => job({ priorty: 1 }), /there is no option priorty/],
  [() => job({ start_within: 1 }), /there is no option start_within/],
  [() => enqueueFlow(client, 'a', { maxDelay: 1 }), /there is no option maxDelay/],
  [() => enqueueFlow(client, 'a', { tasks: [{ task: 'x', maxDelay: 1 }] }), /there is no option maxDelay/],
  [() => job({ startBy: 1 }), /startBy is a Date, or a text, not 1/],
  [() => publish(client, 't', {}, { stage: 'x' }), /there is no option stage/],
  [() => job({ delay: NaN }), LENGTH],
  [() => job({ delay: new Date() }), LENGTH],
  [() => job({ delay: Infinity }), LENGTH],
  [() => job({ uniqueFor: {} }), LENGTH],
  [() => job({ lease: [5] }), LENGTH],
  [() => job({ runAt: Date.now() }), /runAt is a Date, or a text, not \d+/],
  [() => job({ runAt: new Date('never') }), /runAt is a Date, or a text, not of type Date/],
  [() => job({ uniqueKey: 7.5 }), /uniqueKey is a text, not 7.5/],
  [() => job({ groupKey: {} }), /groupKey is a text, not of type Object/],
  [() => job({ priority: 1.5 }), /priority is an integer, not 1.5/],
  [() => job({ priority: 'high' }), /priority is an integer, not the text 'high'/],
  [() => job({ maxAttempts: '5' }), /maxAttempts is an integer, not the text '5'/],
  [() => job({ flow: 'mine' }), /flow is a job's id, not the text 'mine'/],
  [() => job({ headers: 'x' }), /headers is an object, not the text 'x'/],
  [() => job({ headers: [1] }), /headers is an object, not an array/],
  [() => job({ after: 31 }), /after is an array of job ids, not 31/],
  [() => job({ after: '31' }), /after is an array of job ids, not the text '31'/],
  [() => job({ after: { id: 31 } }), /after is an array of job ids, not of type Object/],
  [() => job({ after: new Set([31]) }), /after is an array of job ids, not of type Set/],
  [() => publish(client, 't', {}, { mandatory: 'yes' }), /mandatory is true or false, not the text 'yes'/],
  // Flows.
  [() => enqueueFlow(client, 'a', [{ task: 'x' }]), /give the tasks as \{ tasks: \[…\] \}/],
  [() => enqueueFlow(client, 'a', { tasks: { task: 'x' } }), /tasks is an array of tasks, not of type Object/],
  [() => enqueueFlow(client, 'a', { tasks: [{ task: 'x', priorty: 1 }] }), /there is no option priorty/],
  [() => enqueueFlow(client, 'a', { tasks: [{ task: 'x', payload: undefined }] }), /a payload cannot be undefined/],
  [() => enqueueFlow(client, 'a', { payload: undefined, tasks: [] }), /a payload cannot be undefined/],
  // Workers.
  [() => new Worker({ concurrency: 20 }), /concurrency is an option of the worker: give options as the second/],
  [() => new Worker(new Pool()), /connection is a configuration, as for a client of pg, not of type BoundPool/],
  [() => new Worker(7), /connection is a text or an object, as for a client of pg, not 7/],
  [() => worker({ concurency: 3 }), /a worker has no option concurency; it has concurrency, /],
  [() => worker({ concurrency: '10' }), /concurrency is an integer of at least 1, not the text '10'/],
  [() => worker({ concurrency: 0 }), /concurrency is an integer of at least 1, not 0/],
  [() => worker({ prefetch: -1 }), /prefetch is an integer of at least 0, not -1/],
  [() => worker({ maxConnections: 0 }), /maxConnections is an integer of at least 1, not 0/],
  [() => worker({ wait: '10 s' }), /wait is a number of milliseconds, not the text '10 s'/],
  [() => worker({ wait: -1 }), /wait is a number of milliseconds, not -1/],
  [() => worker({ heartbeat: 0 }), /heartbeat is a number of milliseconds above 0, not 0/],
  [() => worker({ stallTimeout: 0 }), /stallTimeout is a number of milliseconds above 0, not 0/],
  [() => worker({ timeout: 0 }), /timeout is a number of milliseconds above 0, not 0/],
  [() => made().handle('a', () => {}, { timeout: 0 }), /timeout is a number of milliseconds above 0, not 0/],
  [() => worker({ timeout: '1 min' }), /timeout is a number of milliseconds, not /],
  [() => worker({ lease: {} }), LENGTH],
  [() => worker({ lease: ' Infinity' }), /lease is a finite length of time, not the text ' Infinity'/],
  [() => worker({ lease: Infinity }), LENGTH],
  [() => worker({ lease: -1 }), /lease is a number of milliseconds, not -1/],
  [() => worker({ wait: Infinity }), /wait is at most 9007199254740991 milliseconds, not Infinity/],
  [() => worker({ linger: 1e300 }), /linger is at most 9007199254740991 milliseconds, not 1e\+300/],
  [() => worker({ disconnect: Infinity }), /disconnect is at most 9007199254740991 milliseconds, not Infinity/],
  [() => worker({ stallTimeout: Infinity }), /stallTimeout is at most 9007199254740991 milliseconds, not Infinity/],
  [() => worker().handle({ queue: 'a', stage: ['a'] }, () => {}), /stage is a text, not an array/],
  [() => worker({ disconnect: '10 s' }), /disconnect is a number of milliseconds, not the text '10 s'/],
  [() => worker({ onUnknown: 'drop' }), /onUnknown is 'release' or 'fail', not the text 'drop'/],
  [() => worker({ codec: 'aes' }), /codec is a codec with the methods encode, decode, not the text 'aes'/],
  [() => worker({ logger: console.log }), /logger is a logger with the methods debug, info, warn, error, not /],
  [() => made().handle('a', { batch: 3 }, async () => {}), /a handler is a function, not of type Object/],
  [() => made().handle('a', () => {}, { batch: 3 }), /a handler has no option batch; it has timeout/],
  [() => made().handle('a', () => {}, { timeout: '1 h' }), /timeout is a number of milliseconds, not the text '1 h'/],
  [() => made().handle({ queue: 'q', stages: 'a' }, () => {}), /the jobs of a handler have no stages; /],
  [() => made().handle(7, () => {}), /a queue is a text, not 7/],
  [() => made().handle('a', () => {}).handle('a', () => {}), /queue a has a handler/],
  [() => made().handle([...'bcdefghij'], () => {}), /a worker has at most eight queues/],
  [() => made().handleBatch('a', async () => {}), /the size of a batch is an integer of at least 1, not /],
  [() => made().handleBatch('a', 3, async () => {}, { size: 1 }), /a handler has no option size; it has timeout/],
  [() => made().on('complete', () => {}), /a worker has no event complete; it has started, completed, /],
  [() => made().use({}), /a middleware is a function, not of type Object/],
  [() => made().run(), /a worker needs a handler/]
]

test('the error says what to do', async () => {
  for (const [mistake, said] of MISTAKES) {
    await assert.rejects(async () => mistake(), said, mistake.toString())
  }
})

const HANDLERS = [
  [(job) => job.transaction(() => {}).then(() => job.transaction(() => {})), null],
  [async (job) => { for (const n of [1, 2]) await job.step('a', () => n) }, /step "a" has already run in this/],
  [() => { throw Object.create(null) }, /^\[Object: null prototype\] \{\}$/], // eslint-disable-line no-throw-literal
  [(job) => { job.transaction((client) => client.query('SELECT pg_sleep(0.3)')) }, /had ended: await it/],
  [() => new Suspend({ after: 31 }), /after is an array of job ids, not 31/],
  [(job) => job.suspend(client, { after: 31 }), /after is an array of job ids, not 31/],
  [() => { throw new Snooze(NaN) }, LENGTH],
  [() => () => {}, /a result cannot be function: return nothing, or null/],
  [() => new Map(), /a result cannot be a Map/],
  [function * () { yield 1 }, /a result cannot be an iterator: a handler is no function\* and no async function\*/],
  [async function * () { yield 1 }, /a result cannot be an iterator/],
  [() => [1].values(), /a result cannot be an iterator/],
  [() => { throw { code: 42 } }, /^\{ code: 42 \}$/], // eslint-disable-line no-throw-literal
  [() => { throw new AggregateError([new Error('one'), new Error('two')]) }, /^AggregateError: Error: one: Error: two$/]
]

test('the error of the attempt says what to do', async () => {
  for (const [handler, said] of HANDLERS) {
    const id = await enqueue(db.client, 'a', {}, { maxAttempts: 1 })
    await new Worker(db.config, { logger: quiet }).handle('a', handler).drain()
    const [state, error] = await db.one('SELECT ARRAY[state, error] FROM queue.job($1)', [id])
    if (said === null) assert.equal(state, 'completed')
    else assert.match(`${state} ${error}`.replace(/^dead /, ''), said)
  }
})

test('a transaction of a batch that is not awaited fails the attempts', async () => {
  const id = await enqueue(db.client, 'a', {}, { maxAttempts: 1 })
  const handler = async (batch) => { batch.transaction((client) => client.query('SELECT pg_sleep(0.3)')) }
  await new Worker(db.config, { logger: quiet }).handleBatch('a', 3, handler).drain()
  assert.match(await db.one('SELECT error FROM queue.job($1)', [id]), /had ended: await it/)
})

test('a worker does not start with a lease that the server cannot take', async () => {
  for (const lease of ['gibberish', '1e300 hours', '-5 minutes']) {
    await assert.rejects(new Worker(db.config, { logger: quiet, lease }).handle('a', () => {}).drain(),
        /the worker cannot start/)
  }
})

test('the server takes the longest wait', async () => {
  const id = await enqueue(db.client, 'a')
  const said = []
  const logger = { ...quiet, error: (_, text) => said.push(text) }
  const own = new Worker(db.config, { logger, wait: Number.MAX_SAFE_INTEGER, concurrency: 1 })
  own.handle('a', () => {}).on('completed', () => setImmediate(() => own.stop())) // the next claim sleeps
  await own.serve()
  assert.equal(await db.one('SELECT state FROM queue.job($1)', [id]), 'completed')
  assert.deepEqual(said, [])
})

test('a batch may return promises, and one that rejects fails its job alone', async () => {
  const ids = await enqueueMany(db.client, 'a', [1, 2, 3], { maxAttempts: 1 })
  let hasEnded = false
  const result = async ({ payload }) => {
    await new Promise((resolve) => setTimeout(resolve, 100 / payload))
    if (payload === 2) throw new Error('two')
    if (payload === 1) hasEnded = true
    return payload
  }
  await new Worker(db.config, { logger: quiet }).handleBatch('a', 3, ({ jobs }) => jobs.map(result)).drain()
  const { rows } = await db.client.query('SELECT j.* FROM unnest($1::bigint[]) AS id, queue.job(id) AS j', [ids])
  assert.deepEqual(rows.map(({ result, error }) => [result, error]), [[1, null], [null, 'Error: two'], [3, null]])
  assert.ok(hasEnded)
})

test('a batch that returns too many promises fails', async () => {
  const id = await enqueue(db.client, 'a', {}, { maxAttempts: 1 })
  const handler = () => [Promise.reject(new Error('one')), Promise.reject(new Error('two'))]
  await new Worker(db.config, { logger: quiet }).handleBatch('a', 3, handler).drain()
  assert.match(await db.one('SELECT error FROM queue.job($1)', [id]), /must return 1 results or none/)
})

test('a completion on another connection counts if it commits', async () => {
  for (const [verb, expected, kind] of [['ROLLBACK', 'dead', 'failed'], ['COMMIT', 'completed', 'completed']]) {
    const id = await enqueue(db.client, 'a', {}, { maxAttempts: 1 })
    const handler = async (job) => {
      await db.client.query('BEGIN')
      await job.complete(db.client)
      await db.client.query(verb)
      throw new Error('after')
    }
    const events = await new Worker(db.config, { logger: quiet }).handle('a', handler).drain()
    assert.equal(events.pop().kind, kind)
    assert.equal(await db.one('SELECT state FROM queue.job($1)', [id]), expected)
  }
})

test('a completion that has rolled back can be repeated', async () => {
  const id = await enqueue(db.client, 'a', {}, { maxAttempts: 1 })
  const handler = async (job) => {
    await db.client.query('BEGIN')
    await job.complete(db.client)
    await db.client.query('ROLLBACK')
    await job.transaction(() => 'again')
  }
  await new Worker(db.config, { logger: quiet }).handle('a', handler).drain()
  assert.equal(await db.one('SELECT result FROM queue.job($1)', [id]), 'again')
})

test('an end that the handler has rolled back is made again', async () => {
  await db.client.query("SELECT queue.create('orders', stages => '{check,pack}')")
  const logger = { ...quiet }
  const [queues, later] = [['a', 'orders', 'a'], 3600000]
  const other = await enqueue(db.client, 'b')
  const ends = [(job, client) => job.complete(client, 7),
    (job, client) => job.advance(client, { stage: 'pack', delay: later }),
    (job, client) => job.suspend(client, { after: [other] })]
  for (const [n, expected] of ['completed', 'scheduled', 'held'].entries()) {
    const id = await enqueue(db.client, queues[n], {}, { maxAttempts: 1 })
    const handler = (job) => job.transaction(async (client) => {
      await client.query('SAVEPOINT s')
      await ends[n](job, client)
      await client.query('ROLLBACK TO s')
    })
    const events = await new Worker(db.config, { logger: quiet }).handle(queues[n], handler).drain()
    const { rows: [{ state, result }] } = await db.client.query('SELECT state, result FROM queue.job($1)', [id])
    assert.deepEqual([state, result], [expected, n === 0 ? 7 : null])
    assert.deepEqual(events.map(({ kind }) => kind).filter((kind) => /lost|failed/.test(kind)), [])
  }
})

test('a handler that fails after it has rolled back its completion fails its attempt', async () => {
  const id = await enqueue(db.client, 'a', {}, { maxAttempts: 1 })
  await new Worker(db.config, { logger: quiet }).handle('a', async (job) => {
    await job.transaction(async (client) => {
      await client.query('SAVEPOINT s')
      await job.complete(client)
      await client.query('ROLLBACK TO s')
    })
    throw new Error('after')
  }).drain()
  assert.equal(await db.one('SELECT error FROM queue.job($1)', [id]), 'Error: after')
})

test('a middleware may end the job itself', async () => {
  const id = await enqueue(db.client, 'a', {}, { maxAttempts: 1 })
  const warned = []
  const logger = { ...quiet, warn: (_, text) => warned.push(text) }
  await new Worker(db.config, { logger }).handle('a', () => {}).use(async (job) => { await job.transaction(() => 1) })
    .drain()
  assert.equal(await db.one('SELECT state FROM queue.job($1)', [id]), 'completed')
  assert.deepEqual(warned, [])
})

test('ids as keys, and intervals and dates of any origin are accepted', async () => {
  const runAt = runInNewContext('new Date(Date.now() + 3600000)')
  const id = await enqueue(db.client, 'a', {}, { uniqueKey: 7, groupKey: 8n, runAt })
  const { rows: [row] } = await db.client.query('SELECT unique_key, group_key FROM queue.job($1)', [id])
  assert.deepEqual(row, { unique_key: '7', group_key: '8' })
  const delay = await db.one("SELECT interval '1 hour'")
  const later = await enqueue(db.client, 'a', {}, { delay })
  assert.equal(await db.one('SELECT state FROM queue.job($1)', [later]), 'scheduled')
})

test('a middleware that does not call the handler fails the attempt', async () => {
  const id = await enqueue(db.client, 'a', {}, { maxAttempts: 1 })
  await new Worker(db.config, { logger: quiet }).handle('a', () => {}).use(() => {}).drain()
  const error = await db.one('SELECT error FROM queue.job($1)', [id])
  assert.equal(error, 'Error: a middleware has not called the handler')
})

test('a payload that is JSON text gives a warning', async () => {
  const warned = once(process, 'warning')
  await enqueue(db.client, 'a', JSON.stringify({ to: 'a' }))
  assert.match((await warned)[0].message, /without JSON.stringify/)
})

test('null is a payload, and the default is {}', async () => {
  const payload = (job) => db.one('SELECT payload::text FROM queue.job($1)', [job])
  assert.equal(await payload(await enqueue(db.client, 'a')), '{}')
  assert.equal(await payload(await enqueue(db.client, 'a', null)), 'null')
  assert.equal(await payload(await enqueue(db.client, 'a', { gone: undefined })), '{}')
})

test('all options together are accepted', () => {
  worker({ concurrency: 1, prefetch: 0, maxConnections: 2, wait: 1, linger: 0, heartbeat: 1, lease: 1,
    disconnect: 0, shutdownTimeout: 1, stallTimeout: 1, timeout: 1, trace: true, effects: ['', {}],
    onUnknown: 'fail', name: 'n', logger: quiet, codec: { encode () {}, decode () {} } })
})
