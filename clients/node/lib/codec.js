'use strict'
// Codecs: what is stored of payloads, results, progress and steps, so that the server need not see them.
//
// A codec is an object with the hooks `encode(value, context)` and `decode(stored, context)`, which may be async. The
// worker and the producers call them with each such value. `context` says what a value is: its `kind` and the `name` of
// the queue, or of the topic for the payload of an event. docs/encryption.md describes what `AesGcm` stores, byte by
// byte, and clients/conformance/codec.json has examples.

const { createCipheriv, createDecipheriv, randomBytes } = require('node:crypto')
const { parse, stringify } = require('./json')

const CIPHER = ['aes-256-gcm', { authTagLength: 16 }]
const NAME = 'aes-gcm/1'
const PARTS = ['codec', 'key', 'data']
const ID = /^[!-~]{0,100}$/ // What the names of codecs and keys look like: the log shows them.

// This worker has no codec or no key for a value. The job is released, as a job without a handler is.
class UnknownCodec extends Error {
  get name () { return 'UnknownCodec' }
}

const text = ({ kind, name }) => `the ${kind} of ${name}`

// Returns whether stored JSON has the form of an encoded value.
function isEncoded (stored) {
  return typeof stored === 'object' && stored !== null && Object.keys(stored).length === PARTS.length &&
    PARTS.every((part) => typeof stored[part] === 'string') && ID.test(stored.codec) && ID.test(stored.key)
}

// The codec of a worker that has none: it stores values as they are, and leaves encoded values to others.
const PLAIN = {
  encode: (value) => value,
  decode (stored, context) {
    if (isEncoded(stored)) throw new UnknownCodec(`no codec ${stored.codec} for ${text(context)}`)
    return stored
  }
}

// Encrypts with AES-256-GCM. `keys`: the keys, 32 bytes each, by their ids. `current`: the id of the key that encrypts;
// all keys decrypt, so that keys can be rotated. `strict`: refuses values that are not encrypted; otherwise they are
// read as they are. `accepts`: the names of other queues and topics whose values a queue accepts.
class AesGcm {
  #keys
  #current
  #strict
  #accepts

  constructor ({ keys, current, strict = false, accepts = {} }) {
    this.#keys = new Map(Object.entries(keys))
    if (!this.#keys.has(current)) throw new RangeError(`there is no key ${current}`)
    for (const [key, { length }] of this.#keys) {
      if (!ID.test(key)) {
        throw new RangeError(`the id ${stringify(key)} of a key must have at most 100 characters, of ASCII from ! to ~`)
      }
      if (length !== 32) throw new RangeError(`key ${key} must have 32 bytes, and has ${length}`)
    }
    this.#current = current
    this.#strict = strict
    this.#accepts = new Map(Object.entries(accepts))
  }

  encode (value, context) { return this.encodeWith(randomBytes(12), value, context) }

  // For tests. A nonce may be used once.
  encodeWith (nonce, value, context) {
    const json = stringify(value)
    if (json === undefined) throw new TypeError(`${text(context)} cannot be ${typeof value}`)
    const [cipher, options] = CIPHER
    const encrypting = createCipheriv(cipher, this.#keys.get(this.#current), nonce, options)
    encrypting.setAAD(associated(context.kind, context.name))
    const data = [nonce, encrypting.update(json, 'utf8'), encrypting.final(), encrypting.getAuthTag()]
    return { codec: NAME, key: this.#current, data: Buffer.concat(data).toString('base64') }
  }

  decode (stored, context) {
    if (!isEncoded(stored)) {
      if (this.#strict) throw new Error(`${text(context)} is not encrypted`)
      return stored
    }
    const { codec, key, data } = stored
    if (codec !== NAME) throw new UnknownCodec(`no codec ${codec} for ${text(context)}`)
    if (!this.#keys.has(key)) throw new UnknownCodec(`no key ${key} of codec ${codec} for ${text(context)}`)
    const bytes = Buffer.from(data, 'base64')
    if (bytes.length >= 28) {
      for (const name of [context.name, ...(this.#accepts.get(context.name) ?? [])]) {
        const json = decrypt(bytes, this.#keys.get(key), associated(context.kind, name))
        if (json !== null) return parse(json)
      }
    }
    throw new Error(`${text(context)} is not what key ${key} has encrypted for it`)
  }
}

// Returns null if the bytes are not authentic.
function decrypt (bytes, key, aad) {
  const [cipher, options] = CIPHER
  const decrypting = createDecipheriv(cipher, key, bytes.subarray(0, 12), options)
  decrypting.setAAD(aad)
  decrypting.setAuthTag(bytes.subarray(-16))
  const plain = decrypting.update(bytes.subarray(12, -16))
  try {
    return Buffer.concat([plain, decrypting.final()]).toString('utf8')
  } catch {
    return null
  }
}

// Returns the additional authenticated data. No name of Postgres contains a zero character.
const associated = (kind, name) => Buffer.from(['pg_queue', NAME, kind, name].join('\0'))

module.exports = { AesGcm, PLAIN, UnknownCodec, isEncoded }
