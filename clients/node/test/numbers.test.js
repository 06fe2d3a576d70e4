'use strict'
// Numbers come and go exactly: integers of any size, in all that jobs carry.

const assert = require('node:assert')
const { test } = require('node:test')
const { Worker, enqueue, enqueueFlow, enqueueMany, parseJson, publish, stringifyJson } = require('..')
const { assertEnqueued } = require('../lib/testing')
const { Engine } = require('../lib/engine')
const { Job } = require('../lib/job')
const { database } = require('./support')

const db = database()
const LARGE = 1970670598291982290n
const VALUES = [LARGE, -LARGE, 2n ** 53n, 10n ** 400n, 9007199254740991, -9007199254740991, 0.1, 1e-7, 0, -1]

test('JSON is read and written without loss', () => {
  for (const text of ['{"a":1970670598291982290,"b":[-9007199254740993,9007199254740991,1.5]}', '1970670598291982290', '[]', 'null',
    '"1970670598291982290"', '{"1970670598291982290":"\\\\\\"9007199254740993","c":9007199254740993}', '{"a":"\\\\","b":9007199254740993}']) {
    assert.strictEqual(stringifyJson(parseJson(text)), text)
  }
  assert.strictEqual(parseJson('9007199254740992'), 2n ** 53n)
  assert.strictEqual(parseJson('9007199254740991'), 9007199254740991)
  assert.strictEqual(parseJson('0.12345678901234567890'), 0.12345678901234568)
  assert.strictEqual(parseJson(null), null)
  assert.strictEqual(stringifyJson(undefined), undefined)
  assert.deepStrictEqual(Object.keys(parseJson('{"__proto__": 9007199254740993}')), ['__proto__'])
  // What a text looks like to the mark of another number does not matter.
  assert.strictEqual(stringifyJson({ a: LARGE, b: `"${LARGE}"` }), `{"a":${LARGE},"b":"\\"${LARGE}\\""}`)
  const round = {}
  round.round = round
  assert.throws(() => stringifyJson(round), TypeError)
})

test('all that a job carries keeps its numbers', async () => {
  await db.client.query("SELECT queue.create_topic('numbers'), queue.bind('numbers', 'b')")
  const worker = new Worker(db.config)
  const seen = []
  worker.handle('a', async (job) => {
    seen.push(job.payload, job.headers.n, await job.step('one', () => LARGE), job.progress)
    await job.saveProgress({ at: LARGE })
    if (job.attempt === 1) throw new Error('again')
    seen.push(await job.step('one', () => 0))
    return { n: LARGE }
  })
  worker.handle('b', async (job) => { seen.push(job.payload); return LARGE })
  await db.running(worker, async () => {
    const id = await enqueue(db.client, 'a', VALUES, { headers: { n: LARGE } })
    await db.waitState(id, 'completed')
    assert.deepStrictEqual(seen.splice(0), [VALUES, LARGE, LARGE, null, VALUES, LARGE, LARGE, { at: LARGE }, LARGE])
    const exact = await db.one(`SELECT result ->> 'n' = '${LARGE}' AND progress ->> 'at' = '${LARGE}' AND payload ->> 0 = '${LARGE}'
      AND (payload ->> 3)::numeric = 10::numeric ^ 400 FROM queue.job($1)`, [id])
    assert.ok(exact)
    const [many] = await enqueueMany(db.client, 'b', [{ n: LARGE }])
    await db.waitState(many, 'completed')
    const published = (await publish(db.client, 'numbers', { n: LARGE })).get('b')
    await db.waitState(published, 'completed')
    assert.deepStrictEqual(seen.splice(0), [{ n: LARGE }, { n: LARGE }])
  })
  await db.client.query("SELECT queue.drop('numbers', force => true)").catch(() => {})
})

test('a flow tells the exact results of its members', async () => {
  const worker = new Worker(db.config)
  let inputs
  worker.handle('b', async (job) => job.payload.n)
  worker.handle('a', async (job) => { inputs = await job.inputs() })
  const flow = await enqueueFlow(db.client, 'a', { tasks: [{ task: 'one', queue: 'b', payload: { n: LARGE } }], runs: true })
  await db.running(worker, () => db.waitState(flow, 'completed'))
  assert.strictEqual(inputs[0].result, LARGE)
})

test('the helpers of tests are exact', async () => {
  await enqueue(db.client, 'a', { n: LARGE })
  const [job] = await assertEnqueued(db.client, 'a', { n: LARGE }, { count: 1 })
  assert.strictEqual(job.payload.n, LARGE)
  await assert.rejects(assertEnqueued(db.client, 'a', { n: LARGE + 1n }), /1970670598291982291/)
})

test('what cannot be read fails its job and no other', async () => {
  await db.client.query("SELECT queue.alter('a', max_attempts => 1)")
  // Postgres writes nothing that JavaScript does not read: a Job is given some.
  const unreadable = new Job({ id: 1, jobId: 1, queue: 'a', payload: '{"n":', headers: null, progress: null })
  assert.ok(unreadable.unreadable instanceof SyntaxError)
  for (const isBatch of [false, true]) {
    const worker = new Worker(db.config)
    const seen = []
    if (isBatch) worker.handleBatch('a', 10, async (batch) => { seen.push(...batch.jobs.map((job) => job.payload)) })
    else worker.handle('a', async (job) => { seen.push(job.payload) })
    const engine = new Engine(worker)
    const told = engine.threw(unreadable, unreadable.unreadable)
    assert.strictEqual(told.kind, 'fail')
    await assert.rejects(engine.call([unreadable]), SyntaxError)
    assert.deepStrictEqual(seen, [])
  }
})
