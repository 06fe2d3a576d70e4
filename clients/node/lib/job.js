'use strict'
// What a handler gets: the job, and what it can do with its attempt.

const { PLAIN } = require('./codec')
const { parse, stringify } = require('./json')
const { Stopped, interval, json, time } = require('./outcomes')

// Columns of queue.claimed_job. Ids are below 2^53, so floating point numbers hold them exactly. JSON comes as text,
// which the driver does not read.
const COLUMNS = `id::float8 AS id, job_id::float8 AS "jobId", queue_name AS queue, stage, payload::text AS payload,
  headers::text AS headers, attempt, max_attempts AS "maxAttempts", priority, unique_key AS "uniqueKey",
  group_key AS "groupKey", progress::text AS progress,
  last_error AS "lastError", enqueued_at AS "enqueuedAt"`

class Job {
  #pool
  #codec
  #effects
  #stop = new AbortController()

  constructor (columns, pool, codec = PLAIN, effects = null) {
    Object.assign(this, columns)
    this.unreadable = null // why the job's JSON could not be read: then the attempt fails, and the worker goes on
    for (const name of ['payload', 'headers', 'progress']) {
      try {
        this[name] = parse(columns[name])
      } catch (error) {
        this[name] = null
        this.unreadable = error
      }
    }
    this.#pool = pool
    this.#codec = codec
    this.#effects = effects
    this.stopReason = null
    this.stopping = false
    this.ended = false
    // For the worker: whether the job's effects are committed on another server, and its completion with them; and the
    // JSON of the result with which the handler has completed the job.
    this.committed = false
    this.result = null
  }

  // Aborted when the handler is to stop; its reason is a `Stopped`.
  get signal () { return this.#stop.signal }

  get traceparent () { return this.headers?.traceparent }

  // Throws `Stopped` if the handler is to stop.
  check () { this.signal.throwIfAborted() }

  // For the worker. The first reason counts, but a lost lease replaces any other reason.
  stop (reason) {
    if (this.stopReason === null || reason === 'lost') this.stopReason = reason
    this.#stop.abort(new Stopped(reason))
  }

  // Runs `work(client)` in a transaction that completes the job when it ends, with the result of `work`. If `work` has
  // ended the job itself, the transaction only commits.
  //
  // If the worker has `effects`, the transaction is there. If an earlier attempt has committed the effects, this throws
  // `AlreadyDone`, and does not call `work`.
  async transaction (work) {
    this.check()
    const complete = async (client, result) => { if (!this.ended) await this.complete(client, result) }
    if (this.#effects) return this.#effects.transaction([this], work, complete)
    try {
      return await this.#pool.transaction(async (client) => {
        const result = await work(client)
        await complete(client, result)
        return result
      })
    } catch (error) {
      this.ended = false
      throw error
    }
  }

  // Completes the job in the caller's own transaction.
  async complete (client, result) {
    this.result = await this.stored(result, 'result')
    const values = [this.id, json(this.result)]
    await client.query('SELECT queue.complete($1::bigint, $2::text::jsonb)', values)
    this.ended = true
  }

  // Moves the job to another stage, in the caller's own transaction.
  async advance (client, { stage = null, payload = null, delay = 0 } = {}) {
    const values = [this.id, stage, json(await this.stored(payload, 'payload')), interval(delay)]
    await client.query('SELECT queue.advance($1::bigint, $2::text, $3::text::jsonb, $4::text::interval)', values)
    this.ended = true
  }

  // Lets the job wait for other jobs, in the caller's own transaction, as `Suspend` does.
  async suspend (client, { after = null, upon = 'ended', progress = null, until = null } = {}) {
    const values = [this.id, after, upon, json(await this.stored(progress, 'progress'))]
    if (until) values.push(time(until))
    const last = until ? ', $5::text::timestamptz' : ''
    await client.query(`SELECT queue.suspend($1::bigint, $2::bigint[], $3::text, $4::text::jsonb${last})`, values)
    this.ended = true
  }

  // Returns the result of `work(client)`, which runs once for all attempts. Its writes commit together with the note
  // that the step is done and its result. The result must be JSON.
  async step (name, work) {
    this.check()
    return this.#pool.transaction(async (client) => {
      const found = 'SELECT s IS NOT NULL AS "isDone", s::text AS result FROM queue.step($1::bigint, $2::text) AS s'
      const { rows: [{ isDone, result: known }] } = await client.query(found, [this.id, name])
      if (isDone) return this.#codec.decode(parse(known), this.#context('step'))
      const result = await work(client)
      const stored = await this.#codec.encode(result ?? null, this.#context('step'))
      const values = [this.id, name, stringify(stored)]
      await client.query('SELECT queue.step_done($1::bigint, $2::text, $3::text::jsonb)', values)
      return result
    })
  }

  // Returns the outcomes of the jobs that this job was after, and of the members of its flow.
  async inputs () {
    const text = `SELECT job_id::float8 AS "jobId", queue_name AS queue, task, state, result::text AS result, error
      FROM queue.inputs($1::bigint)`
    const { rows } = await this.#pool.use((client) => client.query(text, [this.id]))
    return Promise.all(rows.map(async (row) => {
      const result = parse(row.result)
      const context = this.#context('result', row.queue)
      return { ...row, result: result === null ? null : await this.#codec.decode(result, context) }
    }))
  }

  // Stores what was done so far. The next attempt, if there is one, finds it in `progress`.
  async saveProgress (progress) {
    const values = [this.id, stringify(await this.#codec.encode(progress, this.#context('progress')))]
    await this.#pool.use((client) => client.query('SELECT queue.progress($1::bigint, $2::text::jsonb)', values))
    this.progress = progress
  }

  // For the worker. Returns what is stored for a value; for none, null.
  async stored (value, kind) { return value == null ? null : this.#codec.encode(value, this.#context(kind)) }

  // For the worker. Decodes what the job carries.
  async decode () {
    if (this.unreadable) throw this.unreadable
    this.payload = await this.#codec.decode(this.payload, this.#context('payload'))
    if (this.progress !== null) this.progress = await this.#codec.decode(this.progress, this.#context('progress'))
  }

  #context (kind, name = this.queue) { return { kind, name } }

  // For logs.
  toJSON () {
    return { queue: this.queue, jobId: this.jobId, attemptId: this.id, attempt: this.attempt }
  }
}

module.exports = { COLUMNS, Job }
