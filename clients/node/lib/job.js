'use strict'
// What a handler gets: the job, and what it may do with the attempt that it runs.

const { parse, stringify } = require('./json')
const { Stopped, interval, json } = require('./outcomes')

// Of queue.claimed_job. Ids are exact as floating point numbers: they are below 2^53. JSON comes as text, which the
// driver does not read.
const COLUMNS = `id::float8 AS id, job_id::float8 AS "jobId", queue_name AS queue, stage, payload::text AS payload,
  headers::text AS headers, attempt, max_attempts AS "maxAttempts", priority, unique_key AS "uniqueKey",
  group_key AS "groupKey", progress::text AS progress,
  last_error AS "lastError", enqueued_at AS "enqueuedAt"`

class Job {
  #pool
  #stop = new AbortController()

  constructor (columns, pool) {
    Object.assign(this, columns)
    this.unreadable = null // why its JSON could not be read: then the job fails, and its worker goes on
    for (const name of ['payload', 'headers', 'progress']) {
      try {
        this[name] = parse(columns[name])
      } catch (error) {
        this[name] = null
        this.unreadable = error
      }
    }
    this.#pool = pool
    this.stopReason = null
    this.stopping = false
    this.ended = false
  }

  // Aborted when the handler is to stop; its reason is a `Stopped`.
  get signal () { return this.#stop.signal }

  get traceparent () { return this.headers?.traceparent }

  // Throws `Stopped` if the handler is to stop.
  check () { this.signal.throwIfAborted() }

  // For the worker. The first reason counts, but that a lost lease beats all.
  stop (reason) {
    if (this.stopReason === null || reason === 'lost') this.stopReason = reason
    this.#stop.abort(new Stopped(reason))
  }

  // Runs `work(client)` in a transaction that completes the job at its end, with what it returns, unless it did.
  async transaction (work) {
    this.check()
    try {
      return await this.#pool.transaction(async (client) => {
        const result = await work(client)
        if (!this.ended) await this.complete(client, result)
        return result
      })
    } catch (error) {
      this.ended = false
      throw error
    }
  }

  // Completes the job in the caller's own transaction.
  async complete (client, result) {
    await client.query('SELECT queue.complete($1::bigint, $2::text::jsonb)', [this.id, json(result)])
    this.ended = true
  }

  // Takes the job on to another stage, in the caller's own transaction.
  async advance (client, { stage = null, payload = null, delay = 0 } = {}) {
    const values = [this.id, stage, json(payload), interval(delay)]
    await client.query('SELECT queue.advance($1::bigint, $2::text, $3::text::jsonb, $4::text::interval)', values)
    this.ended = true
  }

  // Lets the job wait for others, in the caller's own transaction: as `Suspend` says.
  async suspend (client, { after = null, upon = 'ended', progress = null } = {}) {
    const values = [this.id, after, upon, json(progress)]
    await client.query('SELECT queue.suspend($1::bigint, $2::bigint[], $3::text, $4::text::jsonb)', values)
    this.ended = true
  }

  // The result of `work(client)`, which runs once for all attempts: what it writes and the note that it is done, with
  // its result, commit together. The result is JSON.
  async step (name, work) {
    this.check()
    return this.#pool.transaction(async (client) => {
      const found = 'SELECT s IS NOT NULL AS "isDone", s::text AS result FROM queue.step($1::bigint, $2::text) AS s'
      const { rows: [{ isDone, result: known }] } = await client.query(found, [this.id, name])
      if (isDone) return parse(known)
      const result = await work(client)
      const values = [this.id, name, stringify(result ?? null)]
      await client.query('SELECT queue.step_done($1::bigint, $2::text, $3::text::jsonb)', values)
      return result
    })
  }

  // What became of the jobs that this one was after, and of its members.
  async inputs () {
    const text = `SELECT job_id::float8 AS "jobId", queue_name AS queue, task, state, result::text AS result, error
      FROM queue.inputs($1::bigint)`
    const { rows } = await this.#pool.use((client) => client.query(text, [this.id]))
    return rows.map((row) => ({ ...row, result: parse(row.result) }))
  }

  // Remembers what was done so far: the next attempt, if there is one, finds it in `progress`.
  async saveProgress (progress) {
    const values = [this.id, stringify(progress)]
    await this.#pool.use((client) => client.query('SELECT queue.progress($1::bigint, $2::text::jsonb)', values))
    this.progress = progress
  }

  // For logs.
  toJSON () {
    return { queue: this.queue, jobId: this.jobId, attemptId: this.id, attempt: this.attempt }
  }
}

module.exports = { COLUMNS, Job }
