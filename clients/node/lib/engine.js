'use strict'
// Runs a worker: it claims for all slots on one connection, and sends everything else on a second connection.
//
// The claimer claims as many jobs as there is room for. Its claims carry completions without a result as `completed`,
// so that a busy worker needs one transaction for both. The control sends one heartbeat for all held attempts, and the
// ends that no claim has carried.
//
// An attempt is held from its claim until its handler has ended. The worker sends each end until the server has
// answered, over new connections if necessary. `busy` does not count as an answer: another open transaction has the
// attempt. It may be the handler's own, which the server is still rolling back. If the server does not answer for the
// length of the lease, the worker has lost the lease.
//
// An attempt whose completion is committed on another server rides back: it is extended until the completion has
// arrived. If that takes too long, the worker sends the completion itself.

const { setTimeout: sleep } = require('node:timers/promises')
const { Backoff, lineOf } = require('./backoff')
const { Batch } = require('./batch')
const { interval } = require('./checks')
const { PLAIN, UnknownCodec } = require('./codec')
const { Gone, Link, Pool, SILENCE } = require('./connection')
const { Effects } = require('./effects')
const { Ending, readable, returned, stopped, threw } = require('./endings')
const { Flag, LONGEST } = require('./flag')
const { COLUMNS, Job } = require('./job')
const { AlreadyDone, Snooze, Stopped } = require('./outcomes')
const { CannotStart, ask, refusal } = require('./ready')
const tracing = require('./tracing')
const { watch } = require('./watchdog')

const GATHER = 20 // How long a completion waits for a claim to carry it, in milliseconds as all times here.
const GRACE = 1000 // How long handlers have to react to their signal after a timeout.
const UNKNOWN_PAUSE = 30000 // For how long a job is released if this worker has no handler, codec or key for it.
const MAX_UNKNOWN = 1000 // How many different stages, codecs and keys the log names.
const MAX_RIDE = 30000 // How long a completion may ride back, unless the lease is shorter.
const FAREWELL = 5000 // How long a worker that shuts down tries to send the last ends.
const MISSING = ['42704', '3F000', '42883', '42501'] // The SQLSTATEs for a missing queue, extension or privilege.
const INVALID = '22023' // The SQLSTATE that a worker that lingers gets if its queue has stages and it names none.

// How the server says that the process with the last attempt may have died.
const TIMED_OUT = ['the lease expired', 'the connection of the worker ended']

const CLAIM = `
  SELECT ${COLUMNS}, (extract(epoch FROM lease_expires_at - clock_timestamp()) * 1000)::float8 AS lease
  FROM queue.claim_any($1::text[], max_jobs => $2::integer, wait => $3::text::interval, lease => $4::text::interval,
    stage => $5::text, worker => $6::text, disconnect => $7::text::interval, completed => $8::bigint[]`

const EXTEND = 'SELECT id::float8 AS id, outcome, is_cancelled FROM queue.extend_many($1::bigint[])'
const END = 'SELECT id::float8 AS id, outcome, reason FROM queue.end_batch($1::text::json)'
const LOST = 'QJ001' // The SQLSTATE for a lost attempt, maybe one of another worker.
const LATE = 1000 // If a timer is later than this, the event loop was blocked.
const AT_FAULT = ['22', '54'] // The classes of SQLSTATEs for an end that the server will never accept.

class Engine {
  constructor (worker, isDrain, watch) {
    Object.assign(this, { worker, isDrain, watch, options: worker.options, log: worker.options.logger })
    this.calls = worker.bound()
    this.linger = isDrain ? 0 : worker.options.linger
    this.refusals = this.linger ? [...MISSING, INVALID] : MISSING // what the first claim may find out
    this.unknown = new Set() // what the log has said of jobs without a handler, codec or key
    this.held = new Map() // attempt's id -> { job, route, lease, beatAt, expiry }
    this.ready = [] // held jobs whose handlers have not begun
    this.ended = new Map() // attempt's id -> its end, without an answer, except those that a claim carries
    this.wakeAt = Infinity // when the control wakes by itself
    this.hasClaimed = false // a claim has succeeded, so the queues exist
    this.isClosing = false
    this.stopping = new Flag()
    this.hurry = new Flag()
    this.changed = new Flag() // wakes the claimer: there is room, or the worker stops
    this.due = new Flag() // wakes the control: there is something to send
    const limit = worker.options.maxConnections
    this.pool = new Pool(worker.hosts, limit)
    this.effects = worker.effects && new Effects(worker.effects, this.log, limit)
    const onRefused = () => this.pool.makeRoom(true)
    this.control = new Link(worker.hosts, {
      onConnect: () => this.pool.makeRoom(false), onRefused, onSilent: () => this.claims.renew()
    })
    this.claims = new Link(worker.hosts, {
      onConnect: (client) => this.claiming(client), onRefused, onSilent: () => this.control.renew(),
      patience: worker.options.wait + SILENCE
    })
  }

  claiming (client) {
    client.on('notice', (notice) => this.log.warn({}, lineOf(notice)))
    this.pool.makeRoom(false)
    this.tell('connected')
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

  // The claimer.

  async claimAll () {
    const backoff = new Backoff()
    await this.effects?.check()
    while (!this.stopping.isSet) {
      this.changed.clear()
      const room = this.room()
      if (room <= 0) {
        await this.changed.wait()
        continue
      }
      if (!this.control.client && !await this.reachControl(backoff)) continue
      // The control sends the ends that are due.
      const completed = [...this.ended.values()].filter((ending) => ending.isPlain && ending.due > performance.now())
      for (const { job } of completed) this.ended.delete(job.id)
      // If an attempt ends during the claim, that may make a job ready that the claim does not see.
      const isIdle = !this.held.size && !this.ended.size
      let rows
      try {
        rows = await this.claim(room, completed.map((ending) => ending.job.id))
      } catch (error) {
        for (const ending of completed) this.send(ending) // one of them may be the cause; the control finds out which
        if (error.code === '57014') continue
        if (!this.hasClaimed && this.refusals.includes(error.code)) throw refusal(lineOf(error), error)
        await this.backOff(backoff, error)
        continue
      }
      backoff.reset()
      this.hasClaimed = true
      // An attempt that could not be completed has a row without a job.
      const answers = new Map(rows.filter((row) => !row.jobId).map((row) => [row.id, JSON.parse(row.headers)]))
      for (const ending of completed) this.answered(ending, answers.get(ending.job.id) ?? { outcome: 'completed' })
      const jobs = rows.filter((row) => row.jobId)
      for (const row of jobs) this.accept(row)
      this.start()
      if (this.isDrain && !rows.length && !completed.length) {
        if (isIdle) return
        await this.changed.wait()
      }
    }
  }

  // Connects the control. Returns false if it could not, or if the worker is to stop. Without a connection for
  // heartbeats nothing is claimed: handlers may take all connections that the server has.
  async reachControl (backoff) {
    try {
      await this.stopping.unlessSet(ask(this.control))
      return !this.stopping.isSet
    } catch (error) {
      if (error instanceof CannotStart && !this.hasClaimed) throw error
      await this.backOff(backoff, error)
      return false
    }
  }

  backOff (backoff, error) {
    if (error instanceof Gone) this.tell('disconnected', null, { error: error.message })
    return this.stopping.wait(backoff.failed(this.log, 'claim', error))
  }

  claim (room, completed) {
    const { lease, stage, name, disconnect } = this.options
    // The first claim does not sleep: it finds out whether the queues exist.
    let wait = this.hasClaimed && !this.isDrain ? this.options.wait : 0
    let [sql, more] = [`${CLAIM})`, []]
    if (this.linger) {
      // A full batch is not kept waiting for more jobs. A call that lingers has to wait.
      room = Math.min(room, this.worker.collected())
      wait = Math.max(wait, Math.min(this.options.wait, 1));
      [sql, more] = [`${CLAIM}, linger => $9::text::interval)`, [interval(this.linger)]]
    }
    const values = [[...this.calls.keys()], room, interval(wait), interval(lease), stage ?? null, name]
    return this.claims.fetch(sql, [...values, interval(disconnect), completed, ...more])
  }

  // Returns how many jobs to claim now. A worker that claims ahead waits until a round trip is worthwhile.
  room () {
    const { concurrency, prefetch } = this.options
    const limit = concurrency + (this.isWary() ? 0 : prefetch)
    const taken = this.held.size + this.dueEnds().length
    return taken < concurrency || taken <= limit / 2 ? limit - taken : 0
  }

  // Returns the ends that the control has to send, or is sending. Ends that wait for a claim, and postponed ends, take
  // no slot.
  dueEnds () { return [...this.ended.values()].filter(({ due }) => due <= performance.now()) }

  // Returns whether a job is held that may end the process: none is claimed ahead beside it.
  isWary () {
    return this.options.prefetch > 0 && [...this.held.values()].some(({ job }) => TIMED_OUT.includes(job.lastError))
  }

  running () { return this.held.size - this.ready.length }

  accept ({ lease, ...columns }) {
    const job = new Job(columns, this.pool, this.options.codec ?? PLAIN, this.effects)
    const stages = this.calls.get(job.queue)
    const route = stages.get(job.stage ?? null) ?? stages.get(null)
    if (!route) {
      const stage = (job.stage ?? null) === null ? 'jobs without a stage' : `stage ${job.stage}`
      this.send(this.forAnother(job, `no handler for ${stage} of queue ${job.queue}`))
      return
    }
    job.stopping = this.stopping.isSet
    const held = { job, route, lease: Math.max(lease, 1), beatAt: performance.now() + this.beat(lease), expiry: null }
    this.expireLater(held)
    this.held.set(job.id, held)
    this.ready.push(held)
    this.due.set() // so that the control considers the new lease
  }

  // Returns the end of a job that another worker may run, but not this one. Logs each error once.
  forAnother (job, error) {
    const fails = this.options.onUnknown === 'fail'
    if (!this.unknown.has(error) && this.unknown.size < MAX_UNKNOWN) {
      this.unknown.add(error)
      const then = fails ? 'its jobs fail' : `its jobs are released for ${UNKNOWN_PAUSE / 1000} seconds`
      this.log.warn({ queue: job.queue, stage: job.stage }, `${error}: ${then}`)
    }
    return fails ? new Ending(job, 'fail', { error })
        : new Ending(job, 'release', { delay: interval(UNKNOWN_PAUSE), reason: error })
  }

  expireLater (held) {
    clearTimeout(held.expiry)
    const due = performance.now() + Math.min(held.lease, LONGEST)
    held.expiry = setTimeout(() => {
      const late = Math.round(performance.now() - due)
      if (late > LATE) this.log.warn({}, `the event loop was blocked for ${late} ms: no heartbeat was sent`)
      this.stopJob(held.job.id, 'lost')
    }, due - performance.now())
  }

  start () {
    while (this.ready.length && this.running() < this.options.concurrency && !this.stopping.isSet) {
      const held = this.ready.shift()
      const group = [held, ...this.others(held)]
      for (const one of group) one.hasBegun = true // before the handler runs, as it may stop the worker
      this.limit(group)
      this.run(group)
    }
    // If a job ends the process, the attempts of jobs that have not begun would count.
    if (this.ready.length && this.isWary()) {
      for (const held of this.ready.splice(0)) this.end(held, new Ending(held.job, 'release'))
    }
  }

  // Lets the attempts fail if their handler takes too long. If it goes on although it was told to stop, they fail
  // nevertheless, and it keeps its slots.
  limit (group) {
    const limit = group[0].route.timeout ?? this.options.timeout
    if (limit === null || limit === undefined) return
    const isOn = (held) => this.held.get(held.job.id) === held && !held.job.ended
    const fail = (held) => {
      if (!isOn(held) || held.job.stopReason !== 'timeout') return
      held.isOver = true
      held.beatAt = Infinity
      clearTimeout(held.expiry)
      this.send(stopped(held.job))
    }
    const stop = (held) => {
      if (!isOn(held)) return
      this.stopJob(Object.assign(held.job, { timeout: limit }).id, 'timeout')
      held.timer = setTimeout(fail, GRACE, held)
    }
    for (const held of group) held.timer = setTimeout(stop, Math.min(limit, LONGEST), held)
  }

  // Returns the jobs that the handler runs together with the first one: ready jobs of the same queue and handler, if it
  // takes batches.
  others ({ job: { queue }, route }) {
    if (!route.size) return []
    const most = Math.min(route.size - 1, this.options.concurrency - this.running())
    const isAlike = (one) => one.route === route && one.job.queue === queue
    const others = this.ready.filter(isAlike).slice(0, most)
    this.ready = this.ready.filter((held) => !others.includes(held))
    return others
  }

  // A handler.

  async run (claimed) {
    const group = await this.decoded(claimed)
    const jobs = group.map(({ job }) => job)
    const begun = performance.now()
    for (const job of jobs) this.tell('started', job)
    let endings
    try {
      const results = jobs.length ? await this.call(jobs, group[0].route) : []
      endings = await Promise.all(jobs.map((job, n) => this.ending(job, results[n])))
    } catch (thrown) {
      const error = readable(thrown)
      const failure = jobs.length > 1 && isLossOf(jobs, error) ? new Snooze() : error
      const isMixed = jobs.length > 1 && failure instanceof AlreadyDone
      const ofJob = ({ jobId }) => isMixed && !failure.jobIds.includes(jobId) ? new Snooze() : failure
      endings = jobs.map((job) => this.threw(job, ofJob(job)))
    }
    group.forEach((held, n) => {
      endings[n].milliseconds = performance.now() - begun
      if (this.held.get(held.job.id) === held) this.end(held, endings[n])
    })
    this.start()
    this.changed.set()
  }

  // Decodes what the jobs carry. Ends the jobs that cannot be read, and returns the others.
  async decoded (group) {
    const isHeld = (held) => this.held.get(held.job.id) === held
    for (const held of group) {
      const { job } = held
      try {
        await job.decode()
        job.check()
      } catch (error) {
        if (!(error instanceof UnknownCodec || error instanceof Stopped)) this.tell('started', job)
        if (isHeld(held)) this.end(held, this.threw(job, readable(error)))
      }
    }
    return group.filter(isHeld)
  }

  // Calls the handler. Returns its result for each of the jobs.
  async call (jobs, route) {
    const [job] = jobs
    const { call, size } = route
    if (!size) return [await tracing.within(job, async () => call(job))]
    const results = await tracing.within(job, async () => call(new Batch(jobs, this.pool, this.effects)), true)
    if (results === undefined || results === null) return jobs.map(() => undefined)
    if (Array.isArray(results) && results.length === jobs.length) return results
    throw new TypeError(`a handler of ${jobs.length} jobs must return ${jobs.length} results or none`)
  }

  // Returns how the attempt ends, from what its handler has returned.
  async ending (job, result) {
    try {
      return result instanceof Error ? this.threw(job, readable(result)) : await returned(job, result, this.log)
    } catch (error) { // such as a result that is not JSON
      return this.threw(job, readable(error))
    }
  }

  threw (job, error) {
    const isUnknown = error instanceof UnknownCodec && !job.ended
    if (isUnknown) return this.forAnother(job, error.message)
    return threw(job, error, { log: this.log, trace: this.options.trace })
  }

  end (held, ending) {
    clearTimeout(held.expiry)
    clearTimeout(held.timer)
    this.held.delete(held.job.id)
    if (held.isOver) return // its end is on the way
    if (held.job.committed) { // whatever the handler has done since then
      this.ride(held, ending.milliseconds)
    } else if (ending.kind === 'none') {
      this.settle(ending, held.job.stopReason === 'lost' && !held.job.ended ? 'lost' : ending.event)
    } else {
      // A claim that completes does not sleep, so a claim that lingers carries no ends.
      this.send(ending, ending.isPlain && !this.linger ? GATHER : 0)
    }
  }

  // Extends an attempt until its completion has arrived from the other server.
  ride (held, milliseconds) {
    const ending = new Ending(held.job, 'complete', { result: held.job.result })
    Object.assign(ending, { rider: held, milliseconds })
    held.beatAt = performance.now() + GATHER
    this.send(ending, Math.min(held.lease, MAX_RIDE))
    this.due.set()
  }

  // Tells the handler to stop. If it has not begun, the attempt ends immediately.
  stopJob (id, reason) {
    const held = this.held.get(id)
    if (!held) return
    if (reason === 'lost') { // the lease has expired
      clearTimeout(held.expiry)
      held.beatAt = Infinity
      if (held.job.ended) return // the handler has ended the attempt, and goes on
    }
    if ([reason, 'lost'].includes(held.job.stopReason)) return
    this.log.warn(held.job.toJSON(), `a job is to stop: ${reason}`)
    held.stoppedAt ??= performance.now()
    held.job.stop(reason)
    if (!held.hasBegun) {
      this.ready = this.ready.filter((other) => other !== held)
      this.end(held, stopped(held.job))
      this.changed.set()
    }
  }

  // The control.

  async controlAll () {
    const backoff = new Backoff()
    while (this.ended.size || !this.isClosing) {
      await this.untilDue()
      try {
        await this.flush()
        await this.heartbeat()
        backoff.reset()
      } catch (error) {
        if (!(error instanceof Gone || error.severity)) throw error // an error of the worker's own code
        if (this.control.isSevered) return
        await sleep(Math.min(backoff.failed(this.log, 'heartbeat', error), this.beat(Infinity)))
      }
    }
  }

  async untilDue () {
    const beats = [...this.held.values(), ...this.riders()].map(({ beatAt }) => beatAt)
    this.wakeAt = Math.min(...beats, ...[...this.ended.values()].map(({ due }) => due))
    await this.due.wait(Math.max(this.wakeAt - performance.now(), 0))
    this.due.clear()
  }

  riders () { return [...this.ended.values()].flatMap(({ rider }) => rider ?? []) }

  // The server may find out at any time that a connection has broken, also long after the worker has another one.
  beat (lease) { return Math.min(Math.min(lease, this.options.disconnect || Infinity) / 3, this.options.heartbeat) }

  // Extends all leases. A busy attempt does not expire: an open transaction is ending it, mostly the handler's own. The
  // worker extends it again soon.
  async heartbeat () {
    const begun = performance.now()
    const asked = [...this.held.values(), ...this.riders()]
    if (asked.every(({ beatAt }) => beatAt > begun)) return
    const rows = await this.control.fetch(EXTEND, [asked.map(({ job }) => job.id)])
    for (const { id, outcome, is_cancelled: isCancelled } of rows) {
      const held = this.held.get(id)
      if (!held) {
        this.rideOn(id, outcome, begun)
        continue
      }
      const beat = this.beat(held.lease)
      held.beatAt = begun + (outcome === 'busy' ? Math.min(1000, beat) : beat)
      if (outcome !== 'lost') this.expireLater(held)
      if (isCancelled || outcome === 'lost') this.stopJob(id, isCancelled ? 'cancelled' : 'lost')
    }
  }

  // A completion that rides back has arrived when the attempt cannot be extended any more.
  rideOn (id, outcome, begun) {
    const ending = this.ended.get(id)
    if (!ending?.rider) return
    if (outcome === 'lost') {
      this.ended.delete(id)
      this.settle(ending, ending.event)
      this.changed.set()
    } else {
      ending.rider.beatAt = begun + Math.min(Math.max(ending.pause(), GATHER), this.beat(ending.rider.lease))
    }
  }

  send (ending, delay = 0) {
    ending.due = performance.now() + delay
    this.ended.set(ending.job.id, ending)
    if (ending.due < this.wakeAt) this.due.set()
  }

  // Sends the ends that are due. After an error each end is sent by itself, so that a faulty end does not block the
  // others.
  async flush () {
    const due = this.dueEnds()
    const alone = due.filter(({ errors }) => errors).map((ending) => [ending])
    for (const batch of [due.filter(({ errors }) => !errors), ...alone]) {
      if (!batch.length) continue
      let rows
      try {
        rows = await this.control.fetch(END, [`[${batch.map(({ json }) => json).join(',')}]`])
      } catch (error) {
        if (error instanceof Gone) throw error
        const isAtFault = batch.length === 1 && AT_FAULT.includes(error.code.slice(0, 2))
        const answer = { outcome: isAtFault ? 'refused' : 'error', reason: lineOf(error) }
        rows = batch.map(({ job: { id } }) => ({ id, ...answer }))
      }
      for (const { id, ...answer } of rows) {
        const ending = this.ended.get(id)
        this.ended.delete(id)
        this.answered(ending, answer)
      }
      this.changed.set()
    }
  }

  // Handles the server's answer for an end: finishes it, sends it again, or sends a failure in its place.
  answered (ending, { outcome, reason }) {
    const { job, kind, milliseconds } = ending
    if (outcome === 'error') ending.errors++
    if (outcome === 'refused' || (outcome === 'error' && ending.errors === 2)) {
      this.log.error(job.toJSON(), `a job could not end by ${kind}: ${reason}`)
    }
    if (outcome === 'busy' || outcome === 'error') {
      this.send(ending, ending.pause())
    } else if (outcome === 'refused' && !ending.isLastResort) {
      const failure = new Ending(job, 'fail', { error: ending.error || reason })
      this.send(Object.assign(failure, { milliseconds }))
    } else {
      const isLost = ['lost', 'refused'].includes(outcome) && !ending.rider
      this.settle(ending, !isLost ? ending.event : ending.isDoubtful ? 'completed' : 'lost')
    }
  }

  // Events.

  // Reports that the server has answered: this attempt has ended, or its lease was lost.
  settle (ending, kind) {
    if (kind === 'lost') this.log.warn(ending.job.toJSON(), 'lost lease')
    else this.log.debug(ending.job.toJSON(), kind)
    this.tell(kind, ending.job, { milliseconds: ending.milliseconds, error: ending.error })
  }

  tell (kind, job = null, more = {}) {
    const event = { kind, ...job?.toJSON(), ...more }
    this.watch?.(event)
    try {
      this.worker.emit(kind, event)
    } catch (error) {
      this.log.error({ stack: error.stack }, `a listener has failed: ${error.message}`)
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
    for (const ending of this.ended.values()) {
      if (ending.rider) ending.due = Math.min(ending.due, performance.now() + GRACE)
    }
    this.due.set()
    const farewell = setTimeout(() => this.control.sever(), FAREWELL)
    await control
    clearTimeout(farewell)
    for (const ending of this.ended.values()) {
      this.log.error(ending.job.toJSON(), 'the server did not confirm its end')
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

// Returns whether the server says that one of these attempts is lost. What it answers for each says which one.
function isLossOf (jobs, error) {
  const found = error?.code === LOST && / (\d+)$/.exec(error.message)
  return Boolean(found) && jobs.some(({ id }) => id === Number(found[1]))
}

module.exports = { Engine }
