'use strict'
// A worker begins: with a queue that is missing, which is an error, without a server, which is waited for quietly, and with a
// queue that goes and comes back. Options that nobody knows are refused.

const assert = require('node:assert')
const { test } = require('node:test')
const { Worker, enqueue, enqueueFlow, enqueueMany, enqueueQuery, publish } = require('..')
const { database, quiet, until } = require('./support')

const db = database()

function loud () {
  const lines = []
  const note = (fields, message) => lines.push(message)
  return { lines, logger: { debug () {}, info: note, warn: note, error: note } }
}

for (const way of ['run', 'drain']) {
  test(`a missing queue is an error of ${way}`, async () => {
    await db.client.query("SELECT queue.create('emails')")
    const worker = new Worker(db.config, { logger: quiet })
    worker.handle(['a', 'emials'], async () => {})
    await assert.rejects(worker[way](), (error) => {
      assert.match(error.message, /^the worker cannot start: queue "emials" does not exist.* Hint: .*"emails"/)
      assert.equal(error.cause.code, '42704')
      return true
    })
    // The worker has not begun, and can be run once that is mended.
    await db.client.query("SELECT queue.create('emials')")
    assert.deepEqual((await worker.drain()).map((event) => event.kind), ['connected'])
  })
}

test('a database without the extension is an error', async () => {
  const worker = new Worker({ ...db.config, database: 'postgres' }, { logger: quiet })
  worker.handle('a', async () => {})
  await assert.rejects(worker.run(), /the worker cannot start: .*queue/)
})

test('a queue that is dropped later is tried again', async () => {
  await db.client.query("SELECT queue.create('comes')")
  const { lines, logger } = loud()
  const worker = new Worker({ ...db.config, application_name: 'of_the_dropped' }, { wait: 200, logger })
  worker.handle('comes', async () => {})
  const claims = "SELECT query_start::text FROM pg_stat_activity WHERE application_name = 'of_the_dropped' AND query ~ 'claim_any'"
  await db.running(worker, async () => {
    await db.waitState(await enqueue(db.client, 'comes'), 'completed')
    await db.client.query("SELECT queue.drop('comes', force => true)")
    await until('the worker says so', () => lines.length)
    const tries = new Set()
    await until('it tries again', async () => tries.add(await db.one(claims)).size >= 4)
    await db.client.query("SELECT queue.create('comes')")
    await db.waitState(await enqueue(db.client, 'comes'), 'completed')
  })
  assert.equal(lines.length, 1)
  assert.match(lines[0], /^a claim has failed, the worker tries again: queue "comes" does not exist/)
})

test('a server that is not there is waited for quietly', async () => {
  const { lines, logger } = loud()
  const worker = new Worker({ host: '/nonexistent' }, { logger })
  let tries = 0
  worker.handle('a', async () => {}).on('disconnected', () => tries++)
  await db.running(worker, () => until('it has tried a few times', () => tries >= 4))
  assert.equal(lines.length, 1)
  assert.match(lines[0], /^no connection, the worker tries again: .*nonexistent/)
})

test('what nobody knows is refused', async () => {
  assert.throws(() => new Worker([{}], { concurency: 3 }), /a worker has no option concurency; it has concurrency, /)
  const all = { concurrency: 1, prefetch: 0, wait: 1, heartbeat: 1, lease: 1, stage: 's', sessionBound: false, shutdownTimeout: 1, stallTimeout: 1, name: 'n', logger: quiet }
  const worker = new Worker([{}], all)
  assert.throws(() => worker.handle('a', async () => {}, { batch: 3 }), /a handler has no options/)
  assert.throws(() => worker.handle('a', { batch: 3 }, async () => {}), /a handler is a function/)
  assert.throws(() => worker.handleBatch('a', async () => {}), /the size of a batch/)
  assert.throws(() => worker.handleBatch('a', 3, async () => {}, {}), /a handler has no options/)
  assert.equal(worker.handlers.size, 0)
  await assert.rejects(enqueue(db.client, 'a', {}, { priorty: 1 }), /there is no option priorty/)
  await assert.rejects(publish(db.client, 'a', {}, { stage: 'x' }), /there is no option stage/)
  await assert.rejects(enqueueFlow(db.client, 'a', { tasks: [{ task: 'x', priorty: 1 }] }), /there is no option priorty/)
})

test('undefined is no payload, and null is one', async () => {
  const refused = /a payload cannot be (undefined|function)/
  await assert.rejects(enqueue(db.client, 'a', undefined), refused)
  await assert.rejects(enqueue(db.client, 'a', undefined, { priority: 1 }), refused)
  await assert.rejects(enqueue(db.client, 'a', () => {}), refused)
  await assert.rejects(enqueueMany(db.client, 'a', [{}, undefined]), refused)
  await assert.rejects(publish(db.client, 'a', undefined), refused)
  await assert.rejects(enqueueFlow(db.client, 'a', { payload: undefined, tasks: [] }), refused)
  await assert.rejects(enqueueFlow(db.client, 'a', { tasks: [{ task: 'x', payload: undefined }] }), refused)
  assert.throws(() => enqueueQuery('a', undefined), refused)
  const payload = (job) => db.one('SELECT payload::text FROM queue.job($1)', [job])
  assert.equal(await payload(await enqueue(db.client, 'a')), '{}')
  assert.equal(await payload(await enqueue(db.client, 'a', null)), 'null')
  assert.equal(await payload(await enqueue(db.client, 'a', { gone: undefined })), '{}')
})
