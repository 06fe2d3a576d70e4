'use strict'
// Runs a worker: it claims for all slots on one connection, and sends everything else on a second connection.
//
// The claimer (`claimer`) claims as many jobs as there is room for. The control (`control`) sends one heartbeat for all
// held attempts, and the ends that no claim has carried.
//
// An attempt is held from its claim until its handler has ended. The worker sends each end until the server has
// answered, over new connections if necessary. `busy` does not count as an answer: another open transaction has the
// attempt. It may be the handler's own, which the server is still rolling back. If the server does not answer for the
// length of the lease, the worker has lost the lease.
//
// An attempt whose completion is committed on another server rides back: it is extended until the completion has
// arrived. If that takes too long, the worker sends the completion itself.

const { AsyncResource } = require('node:async_hooks')
const { Batch } = require('./batch')
const { Claimer } = require('./claimer')
const { UnknownCodec } = require('./codec')
const { GATHER } = require('./control')
const { BARE, Ending, isBare, readable, returned, saidBy, stopped, threw } = require('./endings')
const { Flag, LONGEST } = require('./flag')
const { AlreadyDone, Snooze, Stopped } = require('./outcomes')
const { isOff, traced } = require('./tracing')
const { watch } = require('./watchdog')

const GRACE = 1000 // How long handlers have to react to their signal after a timeout.
const MAX_RIDE = 30000 // How long a completion may ride back, unless the lease is shorter.
const FAREWELL = 5000 // How long a worker that shuts down tries to send the last ends.
const LOST = 'QJ001' // The SQLSTATE for a lost attempt, maybe one of another worker.

// One run of a worker, from its first claim to the release of the remaining jobs.
class Engine extends Claimer {
  constructor (worker, isDrain, watch) {
    super(worker, isDrain, watch)
    this.hurry = new Flag()
    this.context = new AsyncResource('pg_queue.Engine') // handlers begin in it, not in that of a job that has ended
  }

  // The second call ends the wait for the handlers.
  stop () {
    if (this.stopping.isSet) this.hurry.set()
    this.stopping.set()
    this.changed.set()
    for (const { job } of this.held.values()) job.stopping = true
  }

  async serve () {
    const claimer = this.claimAll()
    const control = this.controlAll()
    for (const part of [claimer, control]) part.catch(() => {}).finally(() => this.stopping.set())
    const { stallTimeout } = this.options
    const unwatch = stallTimeout == null ? () => {} : watch(stallTimeout, () => this.isStuck(stallTimeout))
    try {
      while (!this.stopping.isSet) await this.stopping.wait()
      await this.shutDown(claimer.catch(() => {}), control.catch(() => {}))
      await Promise.all([claimer, control]) // throws an error of the worker's own code
    } finally {
      unwatch()
    }
  }

  // Starts as many ready jobs as there are slots for.
  start () { this.context.runInAsyncScope(this.startReady, this) }

  startReady () {
    this.isTraced = !isOff() // the application may set a provider of spans while the worker runs
    const free = this.options.concurrency - this.running()
    if (this.ready.length > free && this.isWary()) {
      // If a job ends the process, the attempts of jobs that have not begun would count. The control sends their
      // release before a handler begins.
      for (const held of this.ready.splice(free)) this.end(held, new Ending('release'))
      return void setImmediate(() => this.goOn())
    }
    while (this.ready.length && this.running() < this.options.concurrency && !this.stopping.isSet) {
      const held = this.ready.shift()
      const group = held.route.size ? [held, ...this.others(held)] : [held]
      for (const one of group) one.hasBegun = true // before the handler runs, as it may stop the worker
      this.limit(group)
      this.run(group)
    }
  }

  // Lets the attempts fail if their handler takes too long. If it goes on although it was told to stop, they fail
  // nevertheless, and it keeps its slots.
  limit (group) {
    const limit = group[0].route.timeout ?? this.options.timeout
    if (limit === null || limit === undefined) return
    const isOn = (held) => this.isHeld(held) && !held.job.ended
    const fail = (held) => {
      if (!isOn(held) || held.job.stopReason !== 'timeout') return
      held.isOver = true
      held.beatAt = held.expiresAt = Infinity
      held.endBy(stopped(held.job))
      this.send(held)
    }
    const stop = (held) => {
      if (!isOn(held)) return
      this.stopJob(Object.assign(held.job, { timeout: limit }).id, 'timeout')
      held.timer = setTimeout(fail, GRACE, held)
    }
    for (const held of group) held.timer = setTimeout(stop, Math.min(limit, LONGEST), held)
  }

  // Returns the jobs that a handler of batches runs together with the first one: ready jobs of the same queue.
  others ({ job: { queue }, route }) {
    const most = Math.min(route.size - 1, this.options.concurrency - this.running())
    const isAlike = (one) => one.route === route && one.job.queue === queue
    const others = this.ready.filter(isAlike).slice(0, most)
    this.ready = this.ready.filter((held) => !others.includes(held))
    return others
  }

  // A handler.

  // Runs the handler of some jobs. They have ended when this returns, unless it returns a promise.
  run (group) {
    if (group.every(({ job }) => job.isDecoded)) return this.call(group)
    return this.decoded(group).then((rest) => rest.length && this.call(rest)).finally(() => this.goOn())
  }

  // Decodes what the jobs carry. Ends the jobs that cannot be read, and returns the others.
  async decoded (group) {
    for (const held of group) {
      try {
        await held.job.decode()
        held.job.check()
      } catch (thrown) {
        if (!(thrown instanceof UnknownCodec || thrown instanceof Stopped)) this.tell('started', held.job)
        this.end(held, this.failures([held.job], thrown)[0])
      }
    }
    return group.filter((held) => this.isHeld(held))
  }

  call (group) {
    const { job, route } = group[0]
    const now = performance.now()
    for (const held of group) {
      held.begunAt = now
      this.tell('started', held.job)
    }
    let result
    try {
      const argument = route.size ? new Batch(group.map(({ job }) => job), this.pool, this.effects) : job
      // No other job sees what the handler sets with `enterWith`.
      const resource = new AsyncResource('pg_queue.job')
      result = this.isTraced ? resource.runInAsyncScope(traced, null, job, route.call, argument)
          : resource.runInAsyncScope(route.call, null, argument)
    } catch (thrown) {
      result = Promise.reject(thrown)
    }
    if (!group.every(({ job }) => isBare(job, result))) return this.runOn(group, result)
    for (const held of group) this.end(held, BARE)
  }

  // Ends the attempts when the handler has ended.
  async runOn (group, promise) {
    let endings = []
    try {
      const result = await promise
      const results = group[0].route.size ? await resultsOf(group.length, result) : [result]
      for (let n = 0; n < group.length; n++) {
        const [job, result] = [group[n].job, results[n]]
        endings.push(isBare(job, result) ? BARE : await this.ending(job, result))
      }
    } catch (thrown) {
      endings = this.failures(group.map(({ job }) => job), thrown)
    }
    for (let n = 0; n < group.length; n++) this.end(group[n], endings[n])
    this.goOn()
  }

  // Starts what can run now that handlers have ended.
  goOn () {
    this.start()
    if (this.room(this.held.size) > 0) this.changed.set()
  }

  // Returns how the attempt ends, from what its handler has returned.
  async ending (job, promise) {
    try {
      const result = await promise
      return result instanceof Error ? this.failures([job], result)[0] : await returned(job, result, this.log)
    } catch (error) { // such as a result that is not JSON
      return this.failures([job], error)[0]
    }
  }

  // Returns how attempts end whose handler has thrown this. It may be a value that changes while it is read, or whose
  // fields make no end: then the attempts fail with an error that says so.
  failures (jobs, thrown) {
    try {
      const error = readable(thrown)
      const failure = jobs.length > 1 && isLossOf(jobs, error) ? new Snooze() : error
      const isMixed = jobs.length > 1 && failure instanceof AlreadyDone
      const ofJob = ({ jobId }) => isMixed && !failure.jobIds.includes(jobId) ? new Snooze() : failure
      return jobs.map((job) => this.threw(job, ofJob(job)))
    } catch (failure) {
      const error = new Error(`what the handler has thrown cannot be used: ${saidBy(failure)}`)
      return jobs.map((job) => this.threw(job, error))
    }
  }

  threw (job, error) {
    const isUnknown = error instanceof UnknownCodec && !job.ended
    if (isUnknown) return this.forAnother(job, error.message)
    return threw(job, error, { log: this.log, trace: this.options.trace })
  }

  isHeld (held) { return this.held.get(held.job.id) === held }

  // Ends an attempt, unless it was released in the handler's place.
  end (held, ending) {
    if (!this.isHeld(held)) return
    if (held.timer) clearTimeout(held.timer)
    this.held.delete(held.job.id)
    this.suspects -= Number(held.isSuspect)
    if (held.isOver) return // its end is on the way
    if (held.begunAt) held.milliseconds = performance.now() - held.begunAt
    held.endBy(ending)
    if (held.job.committed) { // whatever the handler has done since then
      this.ride(held)
    } else if (ending.kind === 'none') {
      this.settle(held, held.job.stopReason === 'lost' && !held.job.ended ? 'lost' : ending.event)
    } else if (ending.kind === 'complete' && !this.linger) {
      this.carry(held) // a claim that completes does not sleep, so it would not linger
    } else {
      this.send(held)
    }
  }

  // Extends an attempt until its completion has arrived from the other server.
  ride (held) {
    held.endBy(new Ending('complete', { result: held.job.result }))
    held.isRiding = true
    held.beatAt = performance.now() + GATHER
    this.send(held, Math.min(held.lease, MAX_RIDE))
    this.due.set()
  }

  // Tells the handler to stop. If it has not begun, the attempt ends immediately.
  stopJob (id, reason) {
    const held = this.held.get(id)
    if (!held) return
    if (reason === 'lost') { // the lease has expired
      held.beatAt = held.expiresAt = Infinity
      if (held.job.ended) return // the handler has ended the attempt, and goes on
    }
    if ([reason, 'lost'].includes(held.job.stopReason)) return
    this.log.warn(held.job.toJSON(), `a job is to stop: ${reason}`)
    held.stoppedAt ||= performance.now()
    held.job.stop(reason)
    if (!held.hasBegun) {
      this.ready = this.ready.filter((other) => other !== held)
      this.end(held, stopped(held.job))
      this.changed.set()
    }
  }

  // Returns whether all slots are taken by handlers that should have ended at least `limit` ago.
  isStuck (limit) {
    const late = [...this.held.values()].filter(({ stoppedAt }) => stoppedAt && performance.now() - stoppedAt >= limit)
    return this.running() >= this.options.concurrency && late.length >= this.running()
  }

  // The end.

  async shutDown (claimer, control) {
    this.stopping.set()
    this.changed.set()
    // If the server has not begun the claim, it ignores the request. So the request is repeated until the claim has
    // ended.
    this.claims.cancel()
    const cancelling = setInterval(() => this.claims.cancel(), 100)
    const severing = setTimeout(() => this.claims.sever(), FAREWELL) // in case the server does not answer
    await claimer
    clearInterval(cancelling)
    clearTimeout(severing)
    for (const held of this.ready.splice(0)) this.end(held, stopped(held.job))
    await this.waitForHandlers(this.options.shutdownTimeout, this.hurry)
    for (const id of [...this.held.keys()]) this.stopJob(id, 'shutdown')
    await this.waitForHandlers(GRACE)
    for (const held of [...this.held.values()]) { // their handlers did not stop
      this.log.warn(held.job.toJSON(), 'a job is still running; it is released')
      this.end(held, stopped(held.job))
    }
    this.isClosing = true
    for (const held of this.ended.values()) {
      if (held.isRiding) held.due = Math.min(held.due, performance.now() + GRACE)
    }
    this.due.set()
    const farewell = setTimeout(() => this.control.sever(), FAREWELL)
    await control
    clearTimeout(farewell)
    clearTimeout(this.expiry)
    for (const { job } of [...this.ended.values(), ...this.completed]) {
      this.log.error(job.toJSON(), 'the server did not confirm its end')
    }
    await Promise.all([this.pool.close(), this.effects?.close(), this.claims.close(), this.control.close()])
  }

  async waitForHandlers (limit, hurry) {
    const end = performance.now() + limit
    while (this.held.size && performance.now() < end && !hurry?.isSet) {
      this.changed.clear()
      await this.changed.wait(Math.min(100, Math.max(end - performance.now(), 0)))
    }
  }
}

// Returns a settled promise for each job of a batch, with what its handler has returned for the job. The handler may
// have returned promises itself. All promises end first, so no promise works on when its job runs again.
async function resultsOf (length, result) {
  if (result === undefined || result === null) return []
  if (Array.isArray(result)) {
    const results = result.map((one) => Promise.resolve(one))
    await Promise.allSettled(results)
    if (results.length === length) return results
  }
  throw new TypeError(`a handler of ${length} jobs must return ${length} results or none`)
}

// Returns whether the server says that one of these attempts is lost. What it answers for each says which one.
function isLossOf (jobs, error) {
  const found = error?.code === LOST && / (\d+)$/.exec(error.message)
  return Boolean(found) && jobs.some(({ id }) => id === Number(found[1]))
}

module.exports = { Engine }
