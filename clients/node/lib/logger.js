'use strict'
// The logger of a worker whose user gives none: one line of JSON for each message, to stderr.

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

module.exports = { LOGGER }
