'use strict'
// Effects on another server than the queue's, such as the primary of a bridge (docs/bridge.md).
//
// There a transaction belongs to whoever is the first to ask `queue.once_many` for its jobs and commits. So an effect
// is committed once, however often a job runs. The completion commits with it, and comes back to the queue server by
// the bridge.
//
// If a transaction cannot be begun, that is no fault of the job: it is tried again until the handler is to stop. If the
// connection is lost during a commit, `once_many` is asked once more: it says whether the transaction has committed.

const { setTimeout: sleep } = require('node:timers/promises')
const { Backoff, lineOf } = require('./backoff')
const { Gone, Pool, isGone } = require('./connection')
const { AlreadyDone, Stopped } = require('./outcomes')

const ONCE = 'SELECT id::float8 AS id FROM queue.once_many($1::bigint[]) AS id'

class Effects {
  #pool
  #log

  constructor (hosts, log) {
    this.#pool = new Pool(hosts)
    this.#log = log
  }

  // Runs `work(client)` and `complete(client, result)`, which completes the jobs, in a transaction in which the effects
  // of these jobs are the caller's. Returns the result of `work`.
  async transaction (jobs, work, complete) {
    let result
    let isCommitting = false
    let isCommitted = false
    try {
      await this.#within(jobs, async (client) => {
        result = await work(client)
        // This server does not know of leases.
        if (jobs.some(({ stopReason }) => stopReason === 'lost')) throw new Stopped('lost')
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

  // Runs `work(client)` in an open transaction, if its effects are the caller's. Otherwise throws `AlreadyDone`.
  async #within (jobs, work) {
    const backoff = new Backoff()
    for (;;) {
      for (const job of jobs) job.check()
      let hasBegun = false
      try {
        const done = await this.#pool.use(async (client) => {
          await client.query('BEGIN')
          const { rows } = await client.query(ONCE, [jobs.map(({ jobId }) => jobId)])
          const mine = new Set(rows.map(({ id }) => id))
          hasBegun = true
          const done = jobs.map(({ jobId }) => jobId).filter((jobId) => !mine.has(jobId))
          await (done.length ? client.query('ROLLBACK') : work(client))
          return done
        })
        if (done.length) throw new AlreadyDone(done)
        return
      } catch (error) {
        if (hasBegun) throw error
        const reason = isGone(error) ? new Gone(lineOf(error)) : error
        await sleep(backoff.failed(this.#log, 'transaction', reason), null, { signal: jobs[0].signal })
      }
    }
  }

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
