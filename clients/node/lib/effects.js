'use strict'
// Effects on another server than the queue's, such as the primary of a bridge (docs/bridge.md).
//
// Responsible for transactions there. Not responsible for what the worker does after the commit (`engine`).
//
// Invariant: effects are committed once, however often a job runs. Each transaction first asks `queue.once_many`, which
// lets one transaction with a job commit. The completion commits with the effects, and the bridge carries it to the
// queue server.
//
// If a transaction cannot begin, the job is not at fault: the worker tries again until the handler is to stop. If the
// connection is lost during a commit, the worker asks `once_many` again, which says whether the transaction has
// committed.

const { setTimeout: sleep } = require('node:timers/promises')
const { Backoff, lineOf } = require('./backoff')
const { Gone, Pool, isGone, ownQuery } = require('./connection')
const { AlreadyDone, Stopped } = require('./outcomes')

const ONCE = 'SELECT id::float8 AS id FROM queue.once_many($1::bigint[]) AS id'
// The SQLSTATEs of a database in which bridge/primary.sql has not run, or that does not let this role use it.
const MISSING = ['42883', '3F000', '42501']

class Effects {
  #pool
  #log

  constructor (hosts, log, limit) {
    this.#pool = new Pool(hosts, limit)
    this.#log = log
  }

  // Throws if this can never be a server for effects. It may be one that cannot be reached now.
  async check () {
    try {
      await this.#pool.use((client) => ownQuery(client, ONCE, [[]]), null, { patience: 0 })
    } catch (error) {
      if (!MISSING.includes(error.code)) return
      const hint = 'run bridge/primary.sql there, and SELECT queue_bridge.grant(role)'
      throw new Error(`the worker cannot start: effects: ${lineOf(error)}; ${hint}`, { cause: error })
    }
  }

  // Runs `work(client)` in a transaction for the effects of these jobs, and returns its result. In the same transaction
  // `complete(client, result)` completes the jobs.
  async transaction (jobs, work, complete) {
    let result
    let isCommitting = false
    let isCommitted = false
    try {
      await this.#within(jobs, async (client) => {
        result = await work(client)
        // This server does not know which attempts are lost, or have failed for their time.
        const stopped = jobs.find(({ stopReason }) => ['lost', 'timeout'].includes(stopReason))
        if (stopped) throw new Stopped(stopped.stopReason)
        await complete(client, result)
        isCommitting = true
        await client.query('COMMIT')
      })
      isCommitted = true
    } catch (error) {
      isCommitted = isCommitting && await this.#isDone(jobs)
      if (!isCommitted) throw error
    } finally {
      for (const job of jobs) job.ended = job.committed ||= isCommitted
    }
    return result
  }

  // Runs `work(client)` in an open transaction. Throws `AlreadyDone` if effects are committed already.
  async #within (jobs, work) {
    const backoff = new Backoff()
    for (;;) {
      for (const job of jobs) job.check()
      let hasBegun = false
      try {
        const done = await this.#pool.use(async (client) => {
          await client.query('BEGIN')
          const { rows } = await ownQuery(client, ONCE, [jobs.map(({ jobId }) => jobId)])
          const mine = new Set(rows.map(({ id }) => id))
          hasBegun = true
          const done = jobs.map(({ jobId }) => jobId).filter((jobId) => !mine.has(jobId))
          await (done.length ? client.query('ROLLBACK') : work(client))
          return done
        }, jobs[0].signal, { patience: 0, mayWait: !jobs.some(({ inStep }) => inStep) })
        if (done.length) throw new AlreadyDone(done)
        return
      } catch (error) {
        if (hasBegun || error instanceof Stopped) throw error
        const reason = isGone(error) ? new Gone(lineOf(error)) : error
        const pause = backoff.failed(this.#log, 'transaction', reason)
        await sleep(pause, null, { signal: jobs[0].signal }).catch(() => {}) // aborted: the check says why
      }
    }
  }

  // Returns whether the effects of these jobs are committed.
  async #isDone (jobs) {
    try {
      await this.#within(jobs, (client) => client.query('ROLLBACK'))
      return false
    } catch (error) {
      if (error instanceof AlreadyDone) return true
      throw error
    }
  }

  close () { return this.#pool.close() }
}

module.exports = { Effects }
