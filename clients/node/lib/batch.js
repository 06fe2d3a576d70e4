'use strict'
// Several jobs of a queue that one handler runs together.

const { checkOpen } = require('./connection')
const { Stopped } = require('./outcomes')

class Batch {
  #pool
  #effects
  #stop = null // made when the handler asks for `signal`

  constructor (jobs, pool, effects = null) {
    this.jobs = jobs
    this.#pool = pool
    this.#effects = effects
  }

  get queue () { return this.jobs[0].queue }
  get length () { return this.jobs.length }
  [Symbol.iterator] () { return this.jobs[Symbol.iterator]() }

  // Aborted when all of the jobs are to stop.
  get signal () {
    if (this.#stop) return this.#stop.signal
    this.#stop = new AbortController()
    for (const { signal } of this.jobs) signal.addEventListener('abort', () => this.#heed(), { once: true })
    return this.#heed()
  }

  // Throws `Stopped` if the handler is to stop one of the jobs.
  check () { for (const job of this.jobs) job.check() }

  // Runs `work(client)` in a transaction that completes all jobs when it ends. If the lease of one job is lost, the
  // transaction rolls back, and the other jobs are released.
  //
  // If the worker has `effects`, the transaction is there. If an earlier attempt has committed effects of a job, this
  // throws `AlreadyDone`: that job is completed, and the others are released.
  transaction (work) {
    const running = this.#transaction(work)
    for (const job of this.jobs) if (job.isOpen) job.open = running
    return running
  }

  async #transaction (work) {
    this.check()
    const entered = []
    let isDone = false
    try {
      for (const job of this.jobs) {
        job.enter()
        entered.push(job)
      }
      const result = await this.#run(work)
      isDone = true
      return result
    } finally {
      for (const job of entered) job.leave(isDone)
    }
  }

  #run (work) {
    const ids = this.jobs.map(({ id }) => id)
    // Before the commit: a heartbeat may learn of it first.
    const setEnded = () => { for (const job of this.jobs) job.ended = true }
    if (this.#effects) {
      return this.#effects.transaction(this.jobs, work, async (client) => {
        checkOpen(client)
        await client.query('SELECT queue.complete_many($1::bigint[])', [ids])
        setEnded()
      })
    }
    return this.#pool.transaction(async (client) => {
      const result = await work(client)
      checkOpen(client)
      const sql = "SELECT FROM queue.complete_many($1::bigint[]) WHERE outcome = 'completed'"
      const { rowCount } = await client.query(sql, [ids])
      if (rowCount < ids.length) throw new Stopped('lost')
      setEnded()
      return result
    }, this.signal, !this.jobs.some(({ inStep }) => inStep))
  }

  #heed () {
    if (this.jobs.every((job) => job.stopReason)) this.#stop.abort(new Stopped(this.jobs[0].stopReason))
    return this.#stop.signal
  }
}

module.exports = { Batch }
