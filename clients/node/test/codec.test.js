'use strict'
// The codecs' parts that only Node has. clients/conformance tests the promises of all packages. Its `codec.json` has
// values that each package has encrypted.

const assert = require('node:assert')
const fs = require('node:fs')
const path = require('node:path')
const { test } = require('node:test')
const { AesGcm, UnknownCodec, Worker, enqueue, enqueueFlow, enqueueFlowQuery, enqueueMany, enqueueManyQuery,
  enqueueQuery, parseJson, publish, publishQuery } = require('..')
const { database, quiet, until } = require('./support')

const db = database()

const VECTORS = parseJson(fs.readFileSync(path.join(__dirname, '../../conformance/codec.json'), 'utf8'))
const keys = Object.fromEntries(Object.entries(VECTORS.keys).map(([key, text]) => [key, Buffer.from(text, 'base64')]))
const codec = new AesGcm({ keys, current: 'k1' })
const strict = new AesGcm({ keys, current: 'k1', strict: true })
const payload = { kind: 'payload', name: 'a' }

test('encrypted bytes equal the recorded ones', () => {
  for (const { kind, name, value, nonce, stored } of VECTORS.exact) {
    assert.deepStrictEqual(codec.encodeWith(Buffer.from(nonce, 'hex'), value, { kind, name }), stored)
  }
})

test('values of each package are decrypted', () => {
  assert.deepStrictEqual(new Set(VECTORS.encoded.map(({ by }) => by)), new Set(['python', 'node', 'rust']))
  for (const { kind, name, value, stored } of VECTORS.encoded) {
    assert.deepStrictEqual(strict.decode(stored, { kind, name }), value)
  }
})

test('values that are not authentic are refused', () => {
  for (const { why, kind, name, stored, error } of VECTORS.refused) {
    assert.throws(() => codec.decode(stored, { kind, name }),
        (thrown) => (thrown instanceof UnknownCodec) === (error === 'unknown'), why)
  }
})

test('plain values are read unless the codec is strict', () => {
  for (const plain of VECTORS.plain) {
    assert.deepStrictEqual(codec.decode(plain, payload), plain)
    assert.throws(() => strict.decode(plain, payload), /^Error: the payload of a is not encrypted$/)
  }
})

test('each value has a nonce of its own', () => {
  const nonces = Array.from({ length: 1000 }, () => codec.encode(1, payload).data.slice(0, 16))
  assert.strictEqual(new Set(nonces).size, 1000)
})

test('invalid keys and values are refused', () => {
  assert.throws(() => new AesGcm({ keys, current: 'k3' }), /^RangeError: there is no key k3$/)
  assert.throws(() => new AesGcm({ keys: { k: Buffer.alloc(16) }, current: 'k' }),
      /^RangeError: key k must have 32 bytes, and has 16$/)
  for (const key of ['k\n', 'k 1', 'k'.repeat(101)]) {
    assert.throws(() => new AesGcm({ keys: { [key]: Buffer.alloc(32) }, current: key }),
        /^RangeError: the id "k.* of a key must have at most 100 characters/)
  }
  assert.throws(() => codec.encode(undefined, payload), /^TypeError: the payload of a cannot be undefined$/)
})

test('hooks that fail or hang do not block the worker', async () => {
  const odd = {
    encode: async (value, { kind, name }) => {
      if (value === 'refuse') throw new Error(`no vault for the ${kind} of ${name}`)
      return { odd: value }
    },
    decode: async ({ odd }) => {
      if (odd === 'throw') throw new RangeError('no vault')
      if (odd === 'hang') await new Promise(() => {})
      return odd
    }
  }
  await db.client.query("SELECT queue.alter('a', max_attempts => 1)")
  const [throws, hangs, returns, fine] =
      await enqueueMany(db.client, 'a', ['throw', 'hang', 'return', 'fine'], { codec: odd })
  await assert.rejects(enqueue(db.client, 'a', 'refuse', { codec: odd }), /^Error: no vault for the payload of a$/)
  const worker = new Worker(db.config, { codec: odd, logger: quiet, shutdownTimeout: 0 })
  worker.handle('a', (job) => job.payload === 'return' ? 'refuse' : job.payload)
  const served = worker.serve()
  for (const [job, state] of [[throws, 'dead'], [returns, 'dead'], [fine, 'completed'], [hangs, 'running']]) {
    await until(`job ${job} is ${state}`, async () => await db.state(job) === state)
  }
  worker.stop()
  await served
  assert.equal(await db.state(hangs), 'ready')
  assert.equal(await db.one('SELECT error FROM queue.job($1)', [throws]), 'RangeError: no vault')
  assert.equal(await db.one('SELECT error FROM queue.job($1)', [returns]), 'Error: no vault for the result of a')
  assert.deepEqual(await db.one('SELECT result FROM queue.job($1)', [fine]), { odd: 'fine' })
})

test('a call without a codec sends its statement before it returns', async () => {
  const sent = []
  const client = { query: async ({ text }) => { sent.push(text); return { rows: [{ id: 1 }] } } }
  const calls = [enqueue(client, 'a'), enqueueMany(client, 'a', [1]), publish(client, 'a'), enqueueFlow(client, 'a')]
  assert.equal(sent.length, 4)
  await Promise.all(calls)
})

test('a statement does not wait for a codec', () => {
  for (const make of [enqueueQuery, publishQuery]) {
    assert.throws(() => make('a', 1, { codec }), /^TypeError: a statement does not wait for a codec/)
    assert.strictEqual(make('a', 1, { codec: null }).text, make('a', 1).text)
  }
  assert.throws(() => enqueueManyQuery('a', [1], { codec }), /^TypeError: a statement does not wait for a codec/)
  assert.throws(() => enqueueFlowQuery('a', { codec }), /^TypeError: a statement does not wait for a codec/)
})
