'use strict'
// The logger of a worker whose user gives none: one line of JSON for each message, to stderr.

const log = (level) => (fields, message) => console.error(JSON.stringify({ level, message, ...fields }))
const LOGGER = { debug () {}, info: log('info'), warn: log('warn'), error: log('error') }

module.exports = { LOGGER }
