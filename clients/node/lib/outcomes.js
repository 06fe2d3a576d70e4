'use strict'
// What a handler returns or raises to end an attempt in another way than by a result or an error.

const { boolean, interval, refuse } = require('./checks')
const { stringify } = require('./json')

class Outcome extends Error {
  get name () { return this.constructor.name }
}

// Fails the attempt. The job runs again after `delay` instead of the queue's backoff.
class RetryIn extends Outcome {
  constructor (delay, message = 'to be retried') {
    super(message)
    interval(delay)
    this.delay = delay
  }
}

// Fails the job for good: it is dead, even if it has attempts left.
class Fatal extends Outcome {}

// Releases the job, and does not count the attempt, because the job's time has not come. It runs again after `delay`.
class Snooze extends Outcome {
  constructor (delay = 0) {
    super('snoozed')
    interval(delay)
    this.delay = delay
  }
}

// Releases the job as `Snooze` does. Until then no worker starts a job of its queue, or of its group with `group`: for
// instance because a service has answered 429. `delay` may be the text of a header `Retry-After`: seconds or a date.
class Throttle extends Snooze {
  constructor (delay, { group = false } = {}) {
    super(typeof delay === 'string' ? retryAfter(delay) : delay)
    this.group = boolean(group, 'group')
  }
}

// Returns the milliseconds from now on.
function retryAfter (header) {
  const at = /^\s*\d+\s*$/.test(header) ? Date.now() + Number(header) * 1000 : Date.parse(header)
  return Number.isNaN(at) ? refuse('delay', 'a length of time or the text of a header Retry-After', header)
      : Math.max(at - Date.now(), 0)
}

// Thrown by `transaction` of a worker with `effects`: an earlier attempt has committed the effects. Let it pass: the
// worker completes the job. `jobIds`: the jobs whose effects are committed. The other jobs of a batch are released.
class AlreadyDone extends Outcome {
  constructor (jobIds) { super('its effects are committed already'); this.jobIds = jobIds }
}

// The handler is to stop: `reason` is cancelled, lost, shutdown or timeout.
class Stopped extends Outcome {
  constructor (reason) { super(reason); this.reason = reason }
}

// Returned by a handler: the job goes on in the stage `stage`, by default in the next one.
class Advance {
  constructor ({ stage = null, payload = null, delay = 0 } = {}) { Object.assign(this, { stage, payload, delay }) }
}

// Returned by a handler: the job is held until other jobs have ended. Then it goes on with the same attempt number.
// `after`: these jobs; null: the members of its own flow, which were enqueued with `flow` its job's id. `until`: when
// the job goes on at the latest.
class Suspend {
  constructor ({ after = null, upon = 'ended', progress = null, until = null } = {}) {
    Object.assign(this, { after, upon, progress, until })
  }
}

const json = (value) => value == null ? null : stringify(value)

module.exports = { Advance, AlreadyDone, Fatal, RetryIn, Snooze, Stopped, Suspend, Throttle, json }
