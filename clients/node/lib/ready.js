'use strict'
// What a worker asks the server before its first claim: whether the extension is there, and new enough.

const { version } = require('../package.json')

const ASK = `
  SELECT pg_catalog.current_database() AS database, pg_catalog.to_regnamespace('queue') IS NULL AS is_missing,
    (SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'pg_queue') AS version`

const [major, minor] = version.split('.')
// A version such as `main` is newer than any number.
const isOld = (text) => {
  const [, theirs, its = 0] = /^(\d+)(?:\.(\d+))?/.exec(text) ?? [null, Infinity]
  return Number(theirs) < Number(major) || (Number(theirs) === Number(major) && Number(its) < Number(minor))
}

// Throws if the worker cannot work there. A router of a cluster has the functions without the extension.
async function ask (link) {
  const [{ database, is_missing: isMissing, version: found }] = await link.fetch(ASK)
  if (isMissing) throw refusal(`database ${database} has no extension pg_queue: run CREATE EXTENSION pg_queue there`)
  if (found !== null && isOld(found)) {
    throw refusal(`the extension in database ${database} is ${found}, this package needs ${major}.${minor}: ` +
      'run ALTER EXTENSION pg_queue UPDATE there')
  }
}

class CannotStart extends Error {}

const refusal = (text, cause) => new CannotStart(`the worker cannot start: ${text}`, { cause })

module.exports = { CannotStart, ask, refusal }
