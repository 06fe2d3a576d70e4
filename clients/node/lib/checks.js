'use strict'
// Checks arguments when they are given, and says in a sentence what is wrong with them.

const { isDate } = require('node:util').types // of any realm, such as that of a test

// Says what a value is: a word that an application's author knows.
function kindOf (value) {
  if (value === null || value === undefined || Number.isNaN(value)) return String(value)
  if (typeof value !== 'object') return typeof value === 'string' ? `the text '${value.slice(0, 40)}'` : String(value)
  return Array.isArray(value) ? 'an array' : `of type ${value.constructor?.name ?? 'Object'}`
}

const refuse = (name, wanted, value) => { throw new TypeError(`${name} is ${wanted}, not ${kindOf(value)}`) }

// Returns an array as it is. A text or an object would be taken apart.
function array (value, name, of) {
  return Array.isArray(value) ? value : refuse(name, `an array of ${of}`, value)
}

function text (value, name) {
  return typeof value === 'string' ? value : refuse(name, 'a text', value)
}

// An id is a key, too, whether a number or a bigint.
function key (value, name) {
  return typeof value === 'bigint' || Number.isSafeInteger(value) ? String(value) : text(value, name)
}

function integer (value, name, least = -Infinity) {
  const wanted = least === -Infinity ? 'an integer' : `an integer of at least ${least}`
  return Number.isInteger(value) && value >= least ? value : refuse(name, wanted, value)
}

// Drivers read ids as numbers, as texts, or as bigints.
function id (value, name) {
  return Number.isInteger(value) || /^\d+$/.test(String(value)) ? value : refuse(name, "a job's id", value)
}

const ids = (value, name) => array(value, name, 'job ids')

function boolean (value, name) {
  return typeof value === 'boolean' ? value : refuse(name, 'true or false', value)
}

function milliseconds (value, name) {
  return typeof value === 'number' && value >= 0 ? value : refuse(name, 'a number of milliseconds', value)
}

// An interval of the server holds no longer time.
function finite (value, name) {
  if (milliseconds(value, name) <= Number.MAX_SAFE_INTEGER) return value
  return refuse(name, `at most ${Number.MAX_SAFE_INTEGER} milliseconds`, value)
}

const some = (value, name) => milliseconds(value, name) || refuse(name, 'a number of milliseconds above 0', value)

// Returns the text of an interval for Postgres. A number is milliseconds.
function interval (value, name = 'delay') {
  if (value === null || value === undefined) return null
  if (Number.isFinite(value)) return `${value} milliseconds`
  if (typeof value === 'string') return value
  if (typeof value.toPostgres === 'function') return value.toPostgres() // as pg reads an interval
  return refuse(name, "a number of milliseconds, or a text such as '5 minutes'", value)
}

// Returns the text of a time for Postgres.
function time (value, name = 'runAt') {
  if (isDate(value) && !Number.isNaN(value.getTime())) return value.toISOString()
  return typeof value === 'string' ? value : refuse(name, 'a Date, or a text', value)
}

// Refuses values that have no JSON, or that JSON.stringify would write as an empty object.
function json (value, kind) {
  if (value === undefined || typeof value === 'function' || typeof value === 'symbol') {
    const advice = kind === 'payload' ? 'leave it out for {}, or use null' : 'return nothing, or null'
    throw new TypeError(`a ${kind} cannot be ${typeof value}: ${advice}`)
  }
  if (value instanceof Map || value instanceof Set) {
    const advice = value instanceof Map ? 'Object.fromEntries(map)' : '[...set]'
    throw new TypeError(`a ${kind} cannot be a ${value.constructor.name}: give ${advice}`)
  }
  if (isIterator(value)) {
    const advice = kind === 'payload' ? 'give [...iterator]' : 'a handler is no function* and no async function*'
    throw new TypeError(`a ${kind} cannot be an iterator: ${advice}`)
  }
  return value
}

// Returns whether a value is an iterator, such as a generator function returns, without fields of its own.
function isIterator (value) {
  return typeof value === 'object' && value !== null && typeof value.next === 'function' &&
    typeof (value[Symbol.iterator] ?? value[Symbol.asyncIterator]) === 'function' &&
    typeof value.toJSON !== 'function' && !Object.keys(value).length
}

let hasWarned = false

// Warns once of a payload that is JSON already, as SQL wants it: the handler would get a text.
function warnOfText (payload) {
  if (hasWarned || typeof payload !== 'string' || !/^\s*[{[]/.test(payload)) return
  try { JSON.parse(payload) } catch { return }
  hasWarned = true
  process.emitWarning('a payload is a text that holds JSON: give the object itself, without JSON.stringify', 'pg_queue')
}

// Checks what runs a producer's statement.
function client (value) {
  if (typeof value?.query === 'function') return value
  throw new TypeError(`the first argument is a client or a pool of pg, not ${kindOf(value)}: ` +
    'for other drivers there are enqueueQuery, enqueueManyQuery, enqueueFlowQuery and publishQuery')
}

// Refuses properties that are none of these. `what`: as in `a worker has no option x`.
function only (object, known, what) {
  const unknown = Object.keys(object).find((name) => !known.includes(name))
  if (unknown !== undefined) throw new TypeError(`${what} ${unknown}; it has ${known.join(', ')}`)
}

module.exports = { array, boolean, client, finite, id, ids, integer, interval, json, key, kindOf, milliseconds, only,
    refuse, some, text, time, warnOfText }
