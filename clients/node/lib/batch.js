'use strict'
// Several jobs of a queue that one handler runs together.

const { Stopped } = require('./outcomes')

class Batch {
  #pool
  #effects
  #stop = new AbortController()

  constructor (jobs, pool, effects = null) {
    this.jobs = jobs
    this.#pool = pool
    this.#effects = effects
    this.#heed()
    for (const { signal } of jobs) signal.addEventListener('abort', () => this.#heed(), { once: true })
  }

  get queue () { return this.jobs[0].queue }
  get length () { return this.jobs.length }
  [Symbol.iterator] () { return this.jobs[Symbol.iterator]() }

  // Aborted when all of the jobs are to stop.
  get signal () { return this.#stop.signal }

  // Throws `Stopped` if the handler is to stop one of the jobs.
  check () { for (const job of this.jobs) job.check() }

  // Runs `work(client)` in a transaction that completes all jobs when it ends. If the lease of one job is lost, the
  // transaction rolls back, and the other jobs are released.
  //
  // If the worker has `effects`, the transaction is there. If an earlier attempt has committed effects of a job, this
  // throws `AlreadyDone`: that job is completed, and the others are released.
  async transaction (work) {
    this.check()
    if (this.#effects) {
      return this.#effects.transaction(this.jobs, work, async (client) => {
        await client.query('SELECT queue.complete_many($1::bigint[])', [this.jobs.map(({ id }) => id)])
        for (const job of this.jobs) job.ended = true // before the commit: a heartbeat may learn of it first
      })
    }
    try {
      return await this.#pool.transaction(async (client) => {
        const result = await work(client)
        const sql = "SELECT FROM queue.complete_many($1::bigint[]) WHERE outcome = 'completed'"
        const { rowCount } = await client.query(sql, [this.jobs.map((job) => job.id)])
        if (rowCount < this.jobs.length) throw new Stopped('lost')
        for (const job of this.jobs) job.ended = true // before the commit: a heartbeat may learn of it first
        return result
      })
    } catch (error) {
      for (const job of this.jobs) job.ended = false
      throw error
    }
  }

  #heed () {
    if (this.jobs.every((job) => job.stopReason)) this.#stop.abort(new Stopped(this.jobs[0].stopReason))
  }
}

module.exports = { Batch }
