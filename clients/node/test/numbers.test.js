'use strict'
// Numbers are exact when JSON is read and written, also in the helpers for tests. clients/conformance tests the numbers
// of jobs.

const assert = require('node:assert')
const { test } = require('node:test')
const { Worker, enqueue, parseJson, stringifyJson } = require('..')
const { assertEnqueued } = require('../lib/testing')
const { Engine } = require('../lib/engine')
const { Held } = require('../lib/held')
const { Job } = require('../lib/job')
const { database, quiet } = require('./support')

const db = database()
const LARGE = 1970670598291982290n

test('JSON is read and written without loss', () => {
  for (const text of ['{"a":1970670598291982290,"b":[-9007199254740993,9007199254740991,1.5]}', '1970670598291982290',
      '[]', 'null',
    '"1970670598291982290"', '{"1970670598291982290":"\\\\\\"9007199254740993","c":9007199254740993}',
    '{"a":"\\\\","b":9007199254740993}']) {
    assert.strictEqual(stringifyJson(parseJson(text)), text)
  }
  assert.strictEqual(parseJson('9007199254740992'), 2n ** 53n)
  assert.strictEqual(parseJson('9007199254740991'), 9007199254740991)
  assert.strictEqual(parseJson('0.12345678901234567890'), 0.12345678901234568)
  assert.strictEqual(parseJson(null), null)
  assert.strictEqual(stringifyJson(undefined), undefined)
  assert.deepStrictEqual(Object.keys(parseJson('{"__proto__": 9007199254740993}')), ['__proto__'])
  // A text may look like a marked number.
  assert.strictEqual(stringifyJson({ a: LARGE, b: `"${LARGE}"` }), `{"a":${LARGE},"b":"\\"${LARGE}\\""}`)
  const round = {}
  round.round = round
  assert.throws(() => stringifyJson(round), TypeError)
})

test('the helpers for tests compare numbers exactly', async () => {
  await enqueue(db.client, 'a', { n: LARGE })
  const [job] = await assertEnqueued(db.client, 'a', { n: LARGE }, { count: 1 })
  assert.strictEqual(job.payload.n, LARGE)
  await assert.rejects(assertEnqueued(db.client, 'a', { n: LARGE + 1n }), /1970670598291982291/)
})

test('unreadable JSON fails its job and no other', async () => {
  await db.client.query("SELECT queue.alter('a', max_attempts => 1)")
  for (const isBatch of [false, true]) {
    // Postgres writes no JSON that JavaScript cannot read, so the test makes the jobs itself.
    const jobs = ['{"n":', '7'].map((payload, n) => new Job([n, n, 'a', null, payload]))
    const worker = new Worker(db.config, { logger: quiet })
    const seen = []
    if (isBatch) worker.handleBatch('a', 10, async (batch) => { seen.push(...batch.jobs.map((job) => job.payload)) })
    else worker.handle('a', async (job) => { seen.push(job.payload) })
    const engine = new Engine(worker)
    const claimed = jobs.map((job) => new Held(job, engine.calls.get('a').get(null)))
    for (const held of claimed) engine.held.set(held.job.id, held)
    for (const group of isBatch ? [claimed] : claimed.map((held) => [held])) await engine.run(group)
    const ends = [...engine.ended.values(), ...engine.completed]
    assert.deepStrictEqual(ends.map(({ ending }) => ending.kind), ['fail', 'complete'])
    assert.match(ends[0].ending.error, /^SyntaxError: /)
    assert.deepStrictEqual(seen, [7])
  }
})
