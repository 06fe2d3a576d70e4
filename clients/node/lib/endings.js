'use strict'
// How an attempt ends, and the statement that tells the server: one for all that end in the same way.

const STATEMENTS = {
  complete: 'SELECT queue.complete(i, r::jsonb) FROM unnest($1::bigint[], $2::text[]) AS e(i, r)',
  advance: `SELECT queue.advance(i, s, p::jsonb, d::interval)
    FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) AS e(i, s, p, d)`,
  // An array of arrays cannot be taken apart: one by one.
  suspend: 'SELECT queue.suspend(i, $2::bigint[], $3::text, $4::text::jsonb) FROM unnest($1::bigint[]) AS e(i)',
  fail: `SELECT queue.fail(i, t, retry_in => r::interval, fatal => f)
    FROM unnest($1::bigint[], $2::text[], $3::text[], $4::boolean[]) AS e(i, t, r, f)`,
  release: 'SELECT queue.release(i, delay => d::interval) FROM unnest($1::bigint[], $2::text[]) AS e(i, d)'
}

const EVENTS = { complete: 'completed', advance: 'advanced', suspend: 'suspended', fail: 'failed', release: 'released', none: 'completed' }

// After what time, in milliseconds, an end is sent again that another open transaction was in the way of; twice as long each
// time, up to a second or so.
const AGAIN = 10

// `kind` with the arguments that its function has beside the id. `none`: the handler has ended it itself, or it is lost.
class Ending {
  constructor (job, kind, ...values) {
    // `delays`: how often the server has said: later.
    Object.assign(this, { job, kind, values, error: null, milliseconds: 0, delays: 0 })
  }

  static failure (job, text, retryIn = null, isFatal = false) {
    // Postgres takes neither NUL nor half of a surrogate pair.
    text = Buffer.from(text.replaceAll('\0', '')).toString()
    return Object.assign(new Ending(job, 'fail', text, retryIn, isFatal), { error: text })
  }

  // Whether a claim can take it along: a completion without a result.
  get isPlain () { return this.kind === 'complete' && this.values[0] === null }

  get event () { return EVENTS[this.kind] }

  // How long to wait until it is sent again.
  delay () { return AGAIN * 2 ** Math.min(this.delays++, 7) }

  // The first one, and those that the same statement can tell. What was refused before would have them refused, too.
  static alike (endings) {
    const { kind, delays } = endings[0]
    if (kind === 'suspend' || delays) return endings.slice(0, 1)
    return endings.filter((ending) => ending.kind === kind && !ending.delays)
  }

  static statement (kind, endings) {
    if (kind === 'suspend') return [STATEMENTS[kind], [[endings[0].job.id], ...endings[0].values]]
    const values = endings[0].values.map((_, n) => endings.map((ending) => ending.values[n]))
    return [STATEMENTS[kind], [endings.map((ending) => ending.job.id), ...values]]
  }
}

module.exports = { Ending }
