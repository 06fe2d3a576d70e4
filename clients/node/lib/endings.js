'use strict'
// How an attempt ends, as `queue.end_batch` reads it.

const { stringify } = require('./json')

const EVENTS = { complete: 'completed', advance: 'advanced', suspend: 'suspended', fail: 'failed', release: 'released',
    none: 'completed' }

// The pause in milliseconds before a busy attempt's end is sent again. It doubles each time, up to about a second.
const RETRY_PAUSE = 10

// `kind` is the function that ends the attempt, `args` are its arguments except the id. `none`: the handler
// itself has ended the attempt, or its lease is lost. Throws if an argument cannot be written as JSON.
class Ending {
  constructor (job, kind, args = {}) {
    Object.assign(this, { job, kind, args, event: EVENTS[kind], error: args.error ?? null, milliseconds: 0 })
    this.json = stringify({ [kind]: { id: job.id, ...args } })
    this.due = 0 // when the control sends it
    this.pauses = 0 // how often the worker has postponed it
    this.errors = 0 // how often a call that contained it has failed
    this.rider = null // if the attempt is completed on another server: what is held until the completion has arrived
  }

  // True if the next claim can carry it: a completion without a result that was not postponed.
  get isPlain () {
    return this.kind === 'complete' && (this.args.result ?? null) === null && !this.pauses && !this.rider
  }

  // True if nothing else can be sent in its place when the server refuses it: a failure with the queue's own backoff.
  get isLastResort () { return this.kind === 'fail' && (this.args.retry_in ?? null) === null }

  // Returns how long to wait before it is sent again.
  pause () { return RETRY_PAUSE * 2 ** Math.min(this.pauses++, 7) }
}

module.exports = { Ending }
