'use strict'
// What a worker knows about an attempt, from its claim until the server has answered its end. Times are milliseconds.

const RETRY_PAUSE = 10 // before the end of a busy attempt is sent again

class Held {
  constructor (job, route, lease, beatAt) {
    this.job = job
    this.route = route
    this.lease = lease
    this.beatAt = beatAt // when the next heartbeat is due
    this.expiresAt = 0 // when the handler is to stop because no heartbeat has succeeded for the length of the lease
    this.hasBegun = false
    this.begunAt = 0 // when its handler was called
    this.milliseconds = 0 // how long its handler ran
    this.isSuspect = false // it may end the process
    this.ending = null // how it ends
  }

  endBy (ending) {
    this.ending = ending
    if (this.errors || this.pauses) this.errors = this.pauses = 0
  }

  // Returns how long to wait before the end is sent again: twice as long each time, up to some seconds after an error.
  pause () { return RETRY_PAUSE * 2 ** Math.min(this.pauses++, this.errors ? 10 : 7) }
}

// Most attempts keep these: the timer of the handler's timeout, since when the handler should have ended, and whether
// the attempt has failed for its time. When the control sends the end, how often a call for it alone has failed, and
// how often it was postponed. Whether the attempt is completed on another server, and the completion has not arrived.
const rare = { timer: null, stoppedAt: 0, isOver: false, due: 0, errors: 0, pauses: 0, isRiding: false }
Object.assign(Held.prototype, rare)

module.exports = { Held, RETRY_PAUSE }
