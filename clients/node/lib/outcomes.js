'use strict'
// How a handler says that an attempt ends otherwise than by a result or an error.

const { stringify } = require('./json')

class Outcome extends Error {
  get name () { return this.constructor.name }
}

// Fails the attempt; the job runs again after `delay`, instead of the queue's own.
class RetryIn extends Outcome {
  constructor (delay, message = 'to be retried') { super(message); this.delay = delay }
}

// Fails the job for good: it is dead, however many attempts it has left.
class Fatal extends Outcome {}

// Gives the attempt back, uncounted: the job's time has not come. It runs again after `delay`.
class Snooze extends Outcome {
  constructor (delay = 0) { super('snoozed'); this.delay = delay }
}

// The handler is to stop: `reason` is cancelled, lost or shutdown.
class Stopped extends Outcome {
  constructor (reason) { super(reason); this.reason = reason }
}

// Returned by a handler: the job goes on in another stage, in the next one unless `stage` says so.
class Advance {
  constructor ({ stage = null, payload = null, delay = 0 } = {}) { Object.assign(this, { stage, payload, delay }) }
}

// Returned by a handler: the job is held until others have ended, and then runs on with the same number of the attempt.
// `after`: these jobs; null: the members of its own flow, which were enqueued with `flow` its job's id.
class Suspend {
  constructor ({ after = null, upon = 'ended', progress = null } = {}) {
    Object.assign(this, { after, upon, progress })
  }
}

// What Postgres reads as an interval. A number means milliseconds.
const interval = (duration) => typeof duration === 'number' ? `${duration} milliseconds` : duration ?? null

const json = (value) => value == null ? null : stringify(value)

module.exports = { Advance, Fatal, RetryIn, Snooze, Stopped, Suspend, interval, json }
