'use strict'
// What a handler gets: the job, and what it can do with its attempt.

const { array, interval, json: checked, time } = require('./checks')
const { PLAIN, isEncoded } = require('./codec')
const { checkOpen, ownQuery } = require('./connection')
const { parse, stringify } = require('./json')
const { Stopped, json } = require('./outcomes')

// Columns of queue.claimed_job. Ids are below 2^53, so floating point numbers hold them exactly. JSON comes as text,
// which the driver does not read. Times come in seconds since 1970, as the driver reads one DateStyle only. `extract`
// would take the server twice as long.
const COLUMNS = `id::float8, job_id::float8, queue_name, stage, payload::text, headers::text, attempt, max_attempts,
  priority, unique_key, group_key, progress::text, last_error, date_part('epoch', enqueued_at)`

function repeated (name) {
  return `step "${name}" has already run in this attempt: give each step a name of its own, such as "${name} 2"`
}

class Job {
  #shared
  #stopped = null // what `check` throws
  #stop = null // made when the handler asks for `signal`: most handlers do not
  #steps = null // those that have run in this attempt

  // `shared`: the `pool`, the `codec` and the `effects` of the worker.
  constructor (row, shared = { codec: PLAIN }) {
    this.#shared = shared
    let payload, headers, progress, enqueuedAt
    ;[this.id, this.jobId, this.queue, this.stage, payload, headers, this.attempt, this.maxAttempts, this.priority,
      this.uniqueKey, this.groupKey, progress, this.lastError, enqueuedAt] = row
    this.enqueuedAt = new Date(Math.round(enqueuedAt * 1e6) / 1000)
    this.payload = this.headers = this.progress = null
    try {
      this.headers = parse(headers)
      this.progress = parse(progress)
      this.payload = parse(payload)
    } catch (error) {
      this.unreadable = error
    }
    this.stopReason = null
    this.stopping = false
    this.ended = false
  }

  // Aborted when the handler is to stop; its reason is a `Stopped`.
  get signal () {
    this.#stop ??= new AbortController()
    if (this.#stopped) this.#stop.abort(this.#stopped)
    return this.#stop.signal
  }

  get traceparent () { return this.headers?.traceparent }

  // Throws `Stopped` if the handler is to stop.
  check () { if (this.#stopped) throw this.#stopped }

  // For the worker. The first reason counts, but a lost lease replaces any other reason.
  stop (reason) {
    if (this.stopReason === null || reason === 'lost') this.stopReason = reason
    this.#stopped ??= new Stopped(reason)
    this.#stop?.abort(this.#stopped)
  }

  // Runs `work(client)` in a transaction that completes the job when it ends, with the result of `work`. If `work` has
  // ended the job itself, the transaction only commits.
  //
  // If the worker has `effects`, the transaction is there. If an earlier attempt has committed the effects, this throws
  // `AlreadyDone`, and does not call `work`.
  transaction (work) {
    const running = this.#transaction(work)
    if (this.isOpen) this.open = running
    return running
  }

  async #transaction (work) {
    this.check()
    this.enter()
    const complete = async (client, result) => {
      checkOpen(client)
      this.returned = result
      if (!this.ended) await this.#complete(client, result)
    }
    try {
      const result = this.#shared.effects ? await this.#shared.effects.transaction([this], work, complete)
          : await this.#shared.pool.transaction(async (client) => {
            const result = await work(client)
            await complete(client, result)
            return result
          }, this.signal, !this.inStep)
      this.leave(this.ended)
      return result
    } catch (error) {
      this.leave(false)
      throw error
    }
  }

  // For the worker: a transaction that is to end the job begins, and ends.
  enter () {
    if (this.isDone) throw new Error('this job has ended: job.transaction completes it, so call it once')
    if (this.isOpen) throw new Error('a job.transaction of this job is open already: await it first')
    this.isOpen = true
    this.ended = false
    this.ownEnd = null
  }

  leave (isDone) {
    this.isDone = isDone
    this.ended = isDone || this.committed
    this.isOpen = false
    this.open = null
  }

  // False if the job has a connection: others may wait for it.
  get #mayWait () { return !this.isOpen && !this.inStep }

  // Completes the job in the caller's own transaction.
  async complete (client, result) {
    await this.#complete(client, result)
    this.ownEnd = ['complete', this.result === null ? null : { result: this.result }]
  }

  async #complete (client, result) {
    this.result = await this.stored(result, 'result')
    const values = [this.id, json(this.result)]
    await client.query('SELECT queue.complete($1::bigint, $2::text::jsonb)', values)
    this.ended = true
  }

  // Moves the job to another stage, in the caller's own transaction.
  async advance (client, { stage = null, payload = null, delay = 0 } = {}) {
    const [stored, after] = [await this.stored(payload, 'payload'), interval(delay)]
    const values = [this.id, stage, json(stored), after]
    await client.query('SELECT queue.advance($1::bigint, $2::text, $3::text::jsonb, $4::text::interval)', values)
    this.ended = true
    this.ownEnd = ['advance', { stage, payload: stored, delay: after }]
  }

  // Lets the job wait for other jobs, in the caller's own transaction, as `Suspend` does.
  async suspend (client, { after = null, upon = 'ended', progress = null, until = null } = {}) {
    const jobs = after && array(after, 'after', 'job ids')
    const stored = await this.stored(progress, 'progress')
    const values = [this.id, jobs, upon, json(stored)]
    if (until) values.push(time(until, 'until'))
    const last = until ? ', $5::text::timestamptz' : ''
    await client.query(`SELECT queue.suspend($1::bigint, $2::bigint[], $3::text, $4::text::jsonb${last})`, values)
    this.ended = true
    const more = { progress: stored, ...(until && { until: time(until, 'until') }) }
    this.ownEnd = ['suspend', { after: jobs && jobs.map(Number), upon, ...more }]
  }

  // Returns the result of `work(client)`, which runs once for all attempts. Its writes commit together with the note
  // that the step is done and its result. The result must be JSON. Each step of an attempt has a name of its own.
  async step (name, work) {
    this.check()
    if (this.#steps?.has(name)) throw new Error(repeated(name))
    const mayWait = this.#mayWait
    this.inStep++
    try {
      const result = await this.#step(name, work, mayWait)
      this.#steps = (this.#steps ?? new Set()).add(name)
      return result
    } finally {
      this.inStep--
    }
  }

  #step (name, work, mayWait) {
    return this.#shared.pool.transaction(async (client) => {
      const found = 'SELECT s IS NOT NULL AS "isDone", s::text AS result FROM queue.step($1::bigint, $2::text) AS s'
      const { rows: [{ isDone, result: known }] } = await ownQuery(client, found, [this.id, name])
      if (isDone) return this.#shared.codec.decode(parse(known), this.#context('step'))
      const result = await work(client)
      checkOpen(client)
      const stored = await this.#shared.codec.encode(checked(result ?? null, 'result'), this.#context('step'))
      const values = [this.id, name, stringify(stored)]
      await client.query('SELECT queue.step_done($1::bigint, $2::text, $3::text::jsonb)', values)
      return result
    }, this.signal, mayWait)
  }

  // Returns the outcomes of the jobs that this job was after, and of the members of its flow.
  async inputs () {
    const text = `SELECT job_id::float8 AS "jobId", queue_name AS queue, task, state, result::text AS result, error
      FROM queue.inputs($1::bigint)`
    const { rows } = await this.#use((client) => ownQuery(client, text, [this.id]))
    return Promise.all(rows.map(async (row) => {
      const result = parse(row.result)
      const context = this.#context('result', row.queue)
      return { ...row, result: result === null ? null : await this.#shared.codec.decode(result, context) }
    }))
  }

  // Stores what was done so far. The next attempt, if there is one, finds it in `progress`.
  async saveProgress (progress) {
    const values = [this.id, stringify(await this.#shared.codec.encode(progress, this.#context('progress')))]
    const sql = 'SELECT queue.progress($1::bigint, $2::text::jsonb)'
    await this.#use((client) => client.query(sql, values))
    this.progress = progress
  }

  // Says how much of the rates of a queue with `rate_cost` the job has used so far.
  async charge (used) {
    await this.#use((client) => client.query('SELECT queue.charge($1::bigint, $2::integer)', [this.id, used]))
  }

  #use (work) { return this.#shared.pool.use(work, this.signal, { mayWait: this.#mayWait }) }

  // For the worker. Returns what is stored for a value; for none, null.
  async stored (value, kind) {
    return value == null ? null : this.#shared.codec.encode(checked(value, kind), this.#context(kind))
  }

  // For the worker. False if what the job carries has to be decoded, or cannot be read.
  get isDecoded () {
    return this.#shared.codec === PLAIN && !this.unreadable && !isEncoded(this.payload) && !isEncoded(this.progress)
  }

  // For the worker. Decodes what the job carries.
  async decode () {
    if (this.unreadable) throw this.unreadable
    this.payload = await this.#shared.codec.decode(this.payload, this.#context('payload'))
    if (this.progress === null) return
    this.progress = await this.#shared.codec.decode(this.progress, this.#context('progress'))
  }

  #context (kind, name = this.queue) { return { kind, name } }

  // For logs.
  toJSON () {
    return { queue: this.queue, jobId: this.jobId, attemptId: this.id, attempt: this.attempt }
  }
}

// For the worker. Most jobs keep these.
Object.assign(Job.prototype, {
  unreadable: null, // why the job's JSON could not be read: then the attempt fails, and the worker goes on
  isDone: false, // `transaction` has committed this end; other transactions may have rolled back
  ownEnd: null, // how the handler has ended the attempt by a call of its own, which a rollback may have undone
  isOpen: false, // a transaction is open
  open: null, // its promise
  inStep: 0, // how many steps run
  returned: undefined, // what the function of the last transaction has returned
  committed: false, // the job's effects are committed on another server, and its completion with them
  result: null // the JSON of the result with which the handler has completed the job
})

module.exports = { COLUMNS, Job }
