'use strict'
// The logger of a worker whose user gives none: one line of JSON for each message, to stderr. And the guard around any
// logger: no error of a logger reaches the worker.

const { inspect } = require('node:util')

const log = (level) => (fields, message) => console.error(line({ level, message, ...fields }))

// Returns the fields as JSON. The stack of a thrown value need not be a text.
function line (fields) {
  try {
    return JSON.stringify(fields)
  } catch {
    return JSON.stringify({ ...fields, stack: inspect(fields.stack, { breakLength: Infinity }) })
  }
}

const LOGGER = { debug () {}, info: log('info'), warn: log('warn'), error: log('error') }

let hasWarned = false

// Says once that a logger has failed. Its own log cannot say it.
function warnOf (error) {
  if (hasWarned) return
  hasWarned = true
  process.emitWarning(`a logger has failed: ${inspect(error)}`, 'pg_queue')
}

// Returns a logger that passes messages on to this one, and throws no error.
function guarded (logger) {
  const level = (name) => (fields, message) => {
    try {
      logger[name](fields, message)?.catch?.(warnOf) // an async function may reject
    } catch (error) {
      warnOf(error)
    }
  }
  return { debug: level('debug'), info: level('info'), warn: level('warn'), error: level('error') }
}

module.exports = { LOGGER, guarded }
