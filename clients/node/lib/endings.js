'use strict'
// How an attempt ends, as `queue.end_batch` reads it.

const { stringify } = require('./json')

const EVENTS = { complete: 'completed', advance: 'advanced', suspend: 'suspended', fail: 'failed', release: 'released',
    none: 'completed' }

// The pause in milliseconds before a busy attempt's end is sent again. It doubles each time, up to about a second.
const RETRY_PAUSE = 10

// `kind` is the function that ends the attempt, with its arguments beside the id. `none`: the handler has ended the
// attempt itself, or its lease is lost. Throws if an argument is no JSON.
class Ending {
  constructor (job, kind, args = {}) {
    Object.assign(this, { job, kind, args, event: EVENTS[kind], error: args.error ?? null, milliseconds: 0 })
    this.json = stringify({ [kind]: { id: job.id, ...args } })
    this.due = 0 // when the control sends it
    this.pauses = 0 // how often the worker has put it off
    this.errors = 0 // how often the call that it was in has failed
  }

  // Whether a claim can take it along: a completion without a result, which was not put off.
  get isPlain () { return this.kind === 'complete' && (this.args.result ?? null) === null && !this.pauses }

  // Whether nothing else can be sent when the server refuses it: a failure that the queue retries as it likes.
  get isLastResort () { return this.kind === 'fail' && (this.args.retry_in ?? null) === null }

  // How long to wait until it is sent again.
  pause () { return RETRY_PAUSE * 2 ** Math.min(this.pauses++, 7) }
}

module.exports = { Ending }
