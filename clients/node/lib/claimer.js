'use strict'
// The claimer of a worker: it claims as many jobs as there is room for.
//
// Its claims carry completions, so that a busy worker needs one transaction for both. They name the queues and stages
// that have a handler, so that the worker gets no other jobs.

const { Backoff, lineOf } = require('./backoff')
const { interval } = require('./checks')
const { PLAIN } = require('./codec')
const { Gone, Link, Pool, SILENCE } = require('./connection')
const { Control } = require('./control')
const { Effects } = require('./effects')
const { Ending } = require('./endings')
const { Flag } = require('./flag')
const { Held } = require('./held')
const { COLUMNS, Job } = require('./job')
const { CannotStart, ask, refusal } = require('./ready')

const UNKNOWN_PAUSE = 30000 // For how long a job is released if this worker does not have its codec or key.
const MAX_UNKNOWN = 1000 // How many different codecs and keys the log names.
// The SQLSTATEs for a missing queue, stage, extension or privilege, and for an option that the server cannot take.
const REFUSALS = ['42704', '3F000', '42883', '42501', '22023', '22007', '22008', '22015']

// How the server says that the process with the last attempt may have died.
const TIMED_OUT = ['the lease expired', 'the connection of the worker ended']

const CLAIM = `
  SELECT ${COLUMNS}, date_part('epoch', lease_expires_at - clock_timestamp()) * 1000
  FROM queue.claim_any(max_jobs => $1::integer, wait => $2::text::interval, completed => $3::text::bigint[],
    results => $4::text::json, queue_names => $5::text[], stages => $6::text[], lease => $7::text::interval,
    worker => $8::text, disconnect => $9::text::interval`

const [JOB_ID, HEADERS, LEASE] = [1, 5, 14] // the places of some columns in a row
const ROWS = { rowMode: 'array' } // it takes less than objects

// The part of a run of a worker that claims.
class Claimer extends Control {
  constructor (worker, isDrain, watch) {
    super(worker, watch)
    this.isDrain = isDrain
    this.calls = worker.bound()
    this.linger = isDrain ? 0 : worker.options.linger
    const { lease, name, disconnect } = worker.options
    const wanted = [...this.calls].flatMap(([queue, stages]) => [...stages.keys()].map((stage) => [queue, stage]))
    this.statement = { text: this.linger ? `${CLAIM}, linger => $10::text::interval)` : `${CLAIM})`, ...ROWS }
    this.constants = [wanted.map(([queue]) => queue), wanted.map(([, stage]) => stage), interval(lease), name,
        interval(disconnect), ...(this.linger ? [interval(this.linger)] : [])]
    this.unknown = new Set() // what the log has said of jobs without a codec or key
    this.ready = [] // held jobs whose handlers have not begun
    this.suspects = 0 // how many held jobs may end the process
    this.hasClaimed = false // a claim has succeeded, so the queues exist
    this.stopping = new Flag()
    const limit = worker.options.maxConnections
    this.codec = worker.options.codec ?? PLAIN
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
      const completed = this.completed.splice(0)
      // If an attempt ends during the claim, that may make a job ready that the claim does not see.
      const isIdle = !this.held.size && !this.ended.size
      let rows
      try {
        rows = await this.claim(room, completed)
      } catch (error) {
        for (const held of completed) this.send(held) // one of them may be the cause; the control finds out which
        if (error.code === '57014') continue
        if (!this.hasClaimed && REFUSALS.includes(error.code)) throw refusal(lineOf(error), error)
        await this.backOff(backoff, error)
        continue
      }
      backoff.reset()
      this.hasClaimed = true
      // An attempt that could not be completed has a row without a job.
      const answers = new Map(rows.filter((row) => !row[JOB_ID]).map((row) => [row[0], JSON.parse(row[HEADERS])]))
      if (answers.size || this.isObserved()) {
        for (const held of completed) this.answered(held, answers.get(held.job.id) ?? { outcome: 'completed' })
      }
      // While a Map lives, V8 keeps its former tables alive, and ended jobs with them.
      this.held = new Map(this.held)
      this.ended = new Map(this.ended)
      const claimedAt = performance.now()
      for (const row of rows) if (row[JOB_ID]) this.accept(row, claimedAt)
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
    // The first claim does not sleep: it finds out whether the queues exist.
    let wait = this.hasClaimed && !this.isDrain ? this.options.wait : 0
    if (this.linger) {
      // A full batch is not kept waiting for more jobs. A call that lingers has to wait.
      room = Math.min(room, this.worker.collected())
      wait = Math.max(wait, Math.min(this.options.wait, 1))
    }
    const hasResult = completed.some(({ ending }) => ending.more)
    const results = hasResult ? `[${completed.map(({ ending }) => ending.result)}]` : null
    const ids = `{${completed.map(({ job }) => job.id)}}`
    return this.claims.fetch(this.statement, [room, interval(wait), ids, results, ...this.constants])
  }

  // Returns how many jobs to claim now. A worker that claims ahead waits until a round trip is worthwhile.
  room (taken = this.held.size + this.dueEnds().length) {
    const { concurrency, prefetch } = this.options
    const limit = concurrency + (this.isWary() ? 0 : prefetch)
    return taken < concurrency || taken <= limit / 2 ? limit - taken : 0
  }

  // Returns whether a job is held that may end the process: none is claimed ahead beside it.
  isWary () { return this.options.prefetch > 0 && this.suspects > 0 }

  running () { return this.held.size - this.ready.length }

  accept (row, now) {
    const job = new Job(row, this)
    const stages = this.calls.get(job.queue)
    const route = stages.get(job.stage ?? null) ?? stages.get(null)
    job.stopping = this.stopping.isSet
    const held = new Held(job, route, Math.max(row[LEASE], 1), now + this.beat(row[LEASE]))
    held.isSuspect = TIMED_OUT.includes(job.lastError)
    this.suspects += Number(held.isSuspect)
    this.expireLater(held, now + held.lease)
    this.held.set(job.id, held)
    this.ready.push(held)
    if (held.beatAt < this.wakeAt) this.due.set() // the control considers the new lease
  }

  // Returns the end of a job that another worker may run, but not this one. Logs each error once.
  forAnother (job, error) {
    const fails = this.options.onUnknown === 'fail'
    if (!this.unknown.has(error) && this.unknown.size < MAX_UNKNOWN) {
      this.unknown.add(error)
      const then = fails ? 'its jobs fail' : `its jobs are released for ${UNKNOWN_PAUSE / 1000} seconds`
      this.log.warn({ queue: job.queue, stage: job.stage }, `${error}: ${then}`)
    }
    return fails ? new Ending('fail', { error })
        : new Ending('release', { delay: interval(UNKNOWN_PAUSE), reason: error })
  }
}

module.exports = { Claimer }
