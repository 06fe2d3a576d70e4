'use strict'
// What a misspelt option and an undefined payload come to.

const assert = require('node:assert')
const { test } = require('node:test')
const { Worker, enqueue, enqueueFlow, enqueueMany, enqueueQuery, publish } = require('..')
const { database, quiet } = require('./support')

const db = database()

test('what nobody knows is refused', async () => {
  assert.throws(() => new Worker([{}], { concurency: 3 }), /a worker has no option concurency; it has concurrency, /)
  const all = { concurrency: 1, prefetch: 0, wait: 1, heartbeat: 1, lease: 1, stage: 's', sessionBound: false,
      shutdownTimeout: 1, stallTimeout: 1, name: 'n', logger: quiet }
  const worker = new Worker([{}], all)
  assert.throws(() => worker.handle('a', async () => {}, { batch: 3 }), /a handler has no options/)
  assert.throws(() => worker.handle('a', { batch: 3 }, async () => {}), /a handler is a function/)
  assert.throws(() => worker.handleBatch('a', async () => {}), /the size of a batch/)
  assert.throws(() => worker.handleBatch('a', 3, async () => {}, {}), /a handler has no options/)
  assert.equal(worker.handlers.size, 0)
  assert.throws(() => worker.handle('a', () => {}).handle('a', () => {}), /has a handler/)
  assert.throws(() => worker.handle([...'bcdefghi'], () => {}), RangeError)
  await assert.rejects(enqueue(db.client, 'a', {}, { priorty: 1 }), /there is no option priorty/)
  await assert.rejects(publish(db.client, 'a', {}, { stage: 'x' }), /there is no option stage/)
  await assert.rejects(enqueueFlow(db.client, 'a', { tasks: [{ task: 'x', priorty: 1 }] }),
      /there is no option priorty/)
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
