'use strict'
// The control of a worker: it sends one heartbeat for all held attempts, and the ends that no claim has carried.
//
// The worker sends each end until the server has answered, over new connections if necessary. `busy` does not count as
// an answer: another open transaction has the attempt. It may be the handler's own, which the server is still rolling
// back.
//
// If the server refuses a call, the control splits it, by queue and then in halves, until each faulty attempt is
// alone. Invariant: between two calls for faulty parts there is one for the attempts without a known fault, if that is
// due.

const { AsyncResource } = require('node:async_hooks')
const { setTimeout: sleep } = require('node:timers/promises')
const { Backoff, lineOf } = require('./backoff')
const { Gone } = require('./connection')
const { Ending, saidBy } = require('./endings')
const { Flag, LONGEST } = require('./flag')
const { RETRY_PAUSE } = require('./held')
const { LOGGER, guarded } = require('./logger')

const GATHER = 20 // How long a completion waits for a claim to carry it, in milliseconds as all times here.
const LATE = 1000 // If a timer is later than this, the event loop was blocked.
const AT_FAULT = ['22', '54'] // The classes of SQLSTATEs for an end that the server will never accept.

const REPORT = 'SELECT id::float8 AS id, outcome, reason FROM queue.end_batch($1::text::json)'

// The part of a run of a worker that sends heartbeats and ends.
class Control {
  constructor (worker, watch) {
    Object.assign(this, { worker, watch, options: worker.options, log: guarded(worker.options.logger) })
    this.held = new Map() // attempt's id -> the attempt, while its handler has not ended
    this.ended = new Map() // attempt's id -> the attempt, until its end is answered, unless a claim carries that
    this.completed = [] // attempts whose completions the next claim carries
    this.carryUntil = -Infinity // when the control sends them instead
    this.parts = new Map() // attempt's id -> its part after errors; others are in part 0
    this.wakeAt = Infinity // when the control wakes by itself
    this.expiry = null // the timer for the lease that expires first
    this.expiryAt = Infinity // when that timer fires
    this.isClosing = false
    this.changed = new Flag() // wakes the claimer: there is room, or the worker stops
    this.due = new Flag() // wakes the control: there is something to send
  }

  // Returns the attempts whose ends the control has to send, or is sending. Postponed ends take no slot.
  dueEnds (now = performance.now()) { return [...this.ended.values()].filter(({ due }) => due <= now) }

  async controlAll () {
    const backoff = new Backoff()
    while (this.ended.size || this.completed.length || !this.isClosing) {
      await this.untilDue()
      try {
        await this.report()
        backoff.reset()
      } catch (error) {
        if (!(error instanceof Gone)) throw error // an error of the worker's own code
        if (this.control.isSevered) return
        await sleep(Math.min(backoff.failed(this.log, 'heartbeat', error), this.beat(Infinity)))
      }
    }
  }

  async untilDue () {
    const now = performance.now()
    // The next completions need no wake if there is one for those before, even if a claim has carried these.
    const carryUntil = this.completed.length || this.carryUntil > now ? this.carryUntil : Infinity
    const dues = [...this.ended.values()].map(({ isRiding, due, beatAt }) => isRiding ? Math.min(due, beatAt) : due)
    this.wakeAt = Math.min(carryUntil, ...dues, ...[...this.held.values()].map(({ beatAt }) => beatAt))
    await this.due.wait(Math.max(this.wakeAt - now, 0))
    this.due.clear()
  }

  // The server may find out at any time that a connection has broken, also long after the worker has another one.
  beat (lease) { return Math.min(Math.min(lease, this.options.disconnect || Infinity) / 3, this.options.heartbeat) }

  // One timer serves all leases. Heartbeats and ends leave it as it is.
  expireLater (held, time = performance.now() + held.lease) {
    held.expiresAt = time
    if (time >= this.expiryAt) return
    clearTimeout(this.expiry)
    this.expiryAt = time
    this.expiry = setTimeout(() => this.expire(), Math.min(time - performance.now(), LONGEST))
  }

  // Stops the handlers of attempts whose lease has expired.
  expire () {
    const now = performance.now()
    const expired = [...this.held.values()].filter(({ expiresAt }) => expiresAt <= now)
    const late = Math.round(now - Math.min(...expired.map(({ expiresAt }) => expiresAt)))
    if (late > LATE) this.log.warn({}, `the event loop was blocked for ${late} ms: no heartbeat was sent`)
    for (const { job: { id } } of expired) this.stopJob(id, 'lost')
    this.expiryAt = Infinity
    for (const held of this.held.values()) this.expireLater(held, held.expiresAt)
  }

  // A completion that rides back has arrived when the attempt cannot be extended any more.
  rideOn (id, outcome, begun) {
    const held = this.ended.get(id)
    if (!held?.isRiding) return
    if (outcome === 'lost') {
      this.ended.delete(id)
      this.settle(held)
      this.changed.set()
    } else {
      held.beatAt = begun + Math.min(Math.max(held.pause(), GATHER), this.beat(held.lease))
    }
  }

  send (held, delay = 0) {
    held.due = performance.now() + delay
    this.ended.set(held.job.id, held)
    if (held.due < this.wakeAt) this.due.set()
  }

  // Leaves a completion to the next claim. If there is none for `GATHER`, the control sends it.
  carry (held) {
    if (!this.completed.length) {
      this.carryUntil = performance.now() + GATHER
      if (this.carryUntil < this.wakeAt) this.due.set()
    }
    this.completed.push(held)
  }

  // Extends all leases if a heartbeat is due, and sends the ends that are due: those of part 0, in which no fault is
  // known, and those of one other part. The other parts take turns.
  async report () {
    if (this.carryUntil <= performance.now()) for (const held of this.completed.splice(0)) this.send(held)
    const begun = performance.now()
    for (const id of this.parts.keys()) if (!this.held.has(id) && !this.ended.has(id)) this.parts.delete(id)
    const ends = new Set(this.dueEnds(begun))
    const entries = [...this.extended(begun), ...ends]
    const parts = [...new Set(entries.map(({ job: { id } }) => this.part(id)))].sort((a, b) => a - b)
    for (const part of parts.slice(0, 2)) {
      await this.reportPart(entries.filter(({ job: { id } }) => this.part(id) === part), ends, begun)
    }
  }

  part (id) { return this.parts.get(id) ?? 0 }

  // Makes parts of a part that the server has refused: one for each queue, or two halves. They are sent after all other
  // parts.
  split (entries) {
    const [next, half] = [Math.max(0, ...this.parts.values()) + 1, Math.ceil(entries.length / 2)]
    const queues = [...new Set(entries.map(({ job: { queue } }) => queue))]
    entries.forEach(({ job: { id, queue } }, n) => {
      this.parts.set(id, next + (queues.length > 1 ? queues.indexOf(queue) : Math.floor(n / half)))
    })
  }

  // Sends the ends of these attempts, and heartbeats for the others, in one call. If the server refuses it, splits the
  // part.
  async reportPart (entries, ends, begun) {
    const json = (held) => ends.has(held) ? held.ending.json(held.job.id) : `{"extend":{"id":${held.job.id}}}`
    let rows
    try {
      rows = await this.control.fetch(REPORT, [`[${entries.map(json)}]`])
      for (const { job: { id } } of entries) this.parts.delete(id)
    } catch (error) {
      if (error instanceof Gone) throw error
      this.split(entries)
      if (entries.length > 1) return
      const isRefused = ends.has(entries[0]) && AT_FAULT.includes(error.code.slice(0, 2))
      rows = [{ id: entries[0].job.id, outcome: isRefused ? 'refused' : 'error', reason: lineOf(error) }]
    }
    for (const { id, ...answer } of rows) {
      const held = this.ended.get(id)
      if (ends.has(held)) {
        this.ended.delete(id)
        this.answered(held, answer)
        this.changed.set()
      } else {
        this.beaten(id, answer, begun)
      }
    }
  }

  // Returns the attempts to extend now: all of a part, if one of them is due.
  extended (now) {
    const riders = [...this.ended.values()].filter(({ isRiding, due }) => isRiding && due > now)
    const held = [...this.held.values(), ...riders].filter(({ isOver }) => !isOver)
    const due = new Set(held.filter(({ beatAt }) => beatAt <= now).map(({ job: { id } }) => this.part(id)))
    return held.filter(({ job: { id } }) => due.has(this.part(id)))
  }

  // Handles the answer to a heartbeat. A busy attempt does not expire: an open transaction is ending it, mostly the
  // handler's own. The worker extends it again soon, and also after an error, which does not renew the lease.
  beaten (id, { outcome, reason }, begun) {
    const held = this.held.get(id)
    if (!held) {
      this.rideOn(id, outcome, begun)
      return
    }
    const beat = this.beat(held.lease)
    held.errors = outcome === 'error' ? held.errors + 1 : 0
    if (held.errors === 2) this.log.error(held.job.toJSON(), `a job could not be extended: ${reason}`)
    const pause = outcome === 'busy' ? Math.min(1000, beat) : beat
    held.beatAt = begun + (outcome === 'error' ? RETRY_PAUSE * 2 ** Math.min(held.errors, 10) : pause)
    if (!['lost', 'error'].includes(outcome)) this.expireLater(held)
    if (['cancelling', 'lost'].includes(outcome)) this.stopJob(id, outcome === 'lost' ? 'lost' : 'cancelled')
  }

  // Handles the server's answer for an end: finishes it, sends it again, or sends a failure in its place.
  answered (held, { outcome, reason }) {
    const { job, ending } = held
    if (outcome === 'error') held.errors++
    if (outcome === 'refused' || (outcome === 'error' && held.errors === 2)) {
      this.log.error(job.toJSON(), `a job could not end by ${ending.kind}: ${reason}`)
    }
    if (outcome === 'busy' || outcome === 'error') {
      this.send(held, held.pause())
    } else if (outcome === 'refused' && !ending.isLastResort) {
      held.isRiding = false
      held.endBy(new Ending('fail', { error: ending.error || reason }))
      this.send(held)
    } else {
      const isLost = ['lost', 'refused'].includes(outcome) && !held.isRiding
      this.settle(held, !isLost ? ending.event : ending.isDoubtful ? 'completed' : 'lost')
    }
  }

  // Events.

  // Returns whether a listener or the log wants to know of each end. Listeners may be added while the worker runs.
  isObserved () { return this.watch || this.options.logger !== LOGGER || this.worker.listenerCount('completed') > 0 }

  // Reports that the server has answered: this attempt has ended, or its lease was lost.
  settle ({ job, ending, milliseconds }, kind = ending.event) {
    if (kind === 'lost') this.log.warn(job.toJSON(), 'lost lease')
    else this.log.debug(job.toJSON(), kind)
    this.tell(kind, job, { milliseconds, error: ending.error })
  }

  tell (kind, job, more) {
    if (!this.watch && !this.worker.listenerCount(kind)) return
    const event = { kind, ...job?.toJSON(), ...more }
    this.watch?.(event)
    try {
      // No job sees what a listener sets with `enterWith`, nor does the caller of the worker.
      new AsyncResource('pg_queue.event').runInAsyncScope(this.worker.emit, this.worker, kind, event)
    } catch (thrown) {
      let stack
      try { stack = thrown?.stack } catch {} // any value can be thrown, even one that cannot be read
      this.log.error({ stack }, `a listener has failed: ${saidBy(thrown)}`)
    }
  }
}

module.exports = { Control, GATHER }
