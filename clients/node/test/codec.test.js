'use strict'
// What is special to Node in codecs. What all packages promise is in clients/conformance; `codec.json` there has values
// that each of them has encrypted.

const assert = require('node:assert')
const fs = require('node:fs')
const path = require('node:path')
const { test } = require('node:test')
const { AesGcm, UnknownCodec, enqueueFlowQuery, enqueueManyQuery, enqueueQuery, parseJson, publishQuery } = require('..')

const VECTORS = parseJson(fs.readFileSync(path.join(__dirname, '../../conformance/codec.json'), 'utf8'))
const keys = Object.fromEntries(Object.entries(VECTORS.keys).map(([key, text]) => [key, Buffer.from(text, 'base64')]))
const codec = new AesGcm({ keys, current: 'k1' })
const strict = new AesGcm({ keys, current: 'k1', strict: true })
const payload = { kind: 'payload', name: 'a' }

test('the bytes are exactly these', () => {
  for (const { kind, name, value, nonce, stored } of VECTORS.exact) {
    assert.deepStrictEqual(codec.encodeWith(Buffer.from(nonce, 'hex'), value, { kind, name }), stored)
  }
})

test('what each package has encrypted is read', () => {
  assert.deepStrictEqual(new Set(VECTORS.encoded.map(({ by }) => by)), new Set(['python', 'node', 'rust']))
  for (const { kind, name, value, stored } of VECTORS.encoded) {
    assert.deepStrictEqual(strict.decode(stored, { kind, name }), value)
  }
})

test('what is not authentic is refused', () => {
  for (const { why, kind, name, stored, error } of VECTORS.refused) {
    assert.throws(() => codec.decode(stored, { kind, name }),
        (thrown) => (thrown instanceof UnknownCodec) === (error === 'unknown'), why)
  }
})

test('what is plain is read unless the codec is strict', () => {
  for (const plain of VECTORS.plain) {
    assert.deepStrictEqual(codec.decode(plain, payload), plain)
    assert.throws(() => strict.decode(plain, payload), /^Error: the payload of a is not encrypted$/)
  }
})

test('each value has a nonce of its own', () => {
  const nonces = Array.from({ length: 1000 }, () => codec.encode(1, payload).data.slice(0, 16))
  assert.strictEqual(new Set(nonces).size, 1000)
})

test('what cannot be a key or a value is refused', () => {
  assert.throws(() => new AesGcm({ keys, current: 'k3' }), /^RangeError: there is no key k3$/)
  assert.throws(() => new AesGcm({ keys: { k: Buffer.alloc(16) }, current: 'k' }),
      /^RangeError: key k must have 32 bytes, and has 16$/)
  assert.throws(() => codec.encode(undefined, payload), /^TypeError: the payload of a cannot be undefined$/)
})

test('a statement does not wait for a codec', () => {
  for (const make of [enqueueQuery, publishQuery]) {
    assert.throws(() => make('a', 1, { codec }), /^TypeError: a statement does not wait for a codec/)
    assert.strictEqual(make('a', 1, { codec: null }).text, make('a', 1).text)
  }
  assert.throws(() => enqueueManyQuery('a', [1], { codec }), /^TypeError: a statement does not wait for a codec/)
  assert.throws(() => enqueueFlowQuery('a', { codec }), /^TypeError: a statement does not wait for a codec/)
})
