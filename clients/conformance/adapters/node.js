'use strict'
// The adapter for clients/node: speaks the protocol of ../README.md.

const readline = require('node:readline')
const { setTimeout: sleep } = require('node:timers/promises')
const { Client } = require('pg')
const queue = require('../../node')
const { Advance, AesGcm, Fatal, RetryIn, Snooze, Suspend, Throttle, Worker, parseJson, stringifyJson } = queue

const running = new Map()
const say = (message) => process.stdout.write(stringifyJson(message) + '\n')

const seconds = (value) => value == null ? value : value * 1000
const camel = (name) => name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase())
const SECONDS = ['wait', 'linger', 'heartbeat', 'disconnect', 'lease', 'shutdown_timeout', 'stall_timeout', 'timeout',
    'delay', 'unique_for', 'start_within', 'max_delay']
const TIMES = ['run_at', 'version', 'start_by']

function codec ({ keys, ...more }) {
  const decoded = Object.entries(keys).map(([key, text]) => [key, Buffer.from(text, 'base64')])
  return new AesGcm({ keys: Object.fromEntries(decoded), ...more })
}

// Returns a codec whose hooks have to be awaited.
const later = (codec) => codec && ({
  encode: async (value, context) => { await sleep(0); return codec.encode(value, context) },
  decode: async (stored, context) => { await sleep(0); return codec.decode(stored, context) }
})

// Options by their names here, with times in milliseconds.
function options (given = {}) {
  const read = (name, value) => SECONDS.includes(name) ? seconds(value) : TIMES.includes(name)
      ? new Date(seconds(value)) : name === 'codec' ? codec(value) : value
  return Object.fromEntries(Object.entries(given).map(([name, value]) => [camel(name), read(name, value)]))
}

const configs = (connection) => connection.map(({ dbname, port, ...more }) =>
    ({ database: dbname, port: Number(port), ...more }))

function equal (one, other) { return stringifyJson(one ?? null) === stringifyJson(other ?? null) }

// One call of a handler, with a job or a batch.
class Handling {
  constructor (name, gates, jobs, argument) {
    Object.assign(this, { name, gates, jobs, argument, job: jobs[0], isBatch: argument !== jobs[0] })
  }

  fill (value) {
    if (Array.isArray(value)) return value.map((one) => this.fill(one))
    if (value && typeof value === 'object') return Object.fromEntries(
        Object.entries(value).map(([name, one]) => [name, this.fill(one)]))
    if (typeof value !== 'string' || value[0] !== '$') return value
    const own = { $step: this.stepped, $inputs: this.inputs, $size: this.jobs.length }
    return (value in own ? own[value] : this.job[camel(value.slice(1))]) ?? null
  }

  // Runs the actions until one of them ends the handler, and returns what that action returns.
  async all (actions, client) {
    for (const action of actions) {
      const condition = Object.entries(action.if ?? {})
      if (!condition.every(([name, value]) => equal(this.job[camel(name)], value))) continue
      const name = Object.keys(action).find((name) => name !== 'if')
      const isNested = ['transaction', 'each'].includes(name)
      const end = await this[name](isNested ? action[name] : this.fill(action[name]), client, action)
      if (end) return end.returns
    }
  }

  // The actions that end the handler.

  return (value) { return { returns: value } }
  fail (text, _, { cause }) { throw new Error(text, cause && { cause: new Error(cause) }) }
  fail_unreadably () { throw Object.assign(new Error(), { toString () { throw new Error('no words') } }) }
  fatal (text) { throw new Fatal(text) }
  retry_in (delay, _, { error }) { throw new RetryIn(seconds(delay), error) }
  snooze (delay) { throw new Snooze(seconds(delay)) }
  throttle (delay, _, { group }) { throw new Throttle(typeof delay === 'string' ? delay : seconds(delay), { group }) }

  return_unserialisable () {
    const circular = {}
    circular.self = circular
    return { returns: circular }
  }

  async advance (value, client) {
    if (!client) return { returns: new Advance(options(value)) }
    await this.job.advance(client, options(value))
  }

  async suspend (value, client) {
    if (value.until) value = { ...value, until: new Date(Date.now() + value.until * 1000) }
    if (!client) return { returns: new Suspend(value) }
    await this.job.suspend(client, value)
  }

  async each (actions) {
    const one = (job) => new Handling(this.name, this.gates, [job], job).all(actions).catch((error) => error)
    return { returns: await Promise.all(this.jobs.map(one)) }
  }

  // The other actions of a handler.

  note (value) { say({ event: 'note', worker: this.name, value }) }

  async wait (gate, _, { deaf }) {
    try {
      while (!this.gates.has(gate)) await sleep(5, null, deaf ? {} : { signal: this.argument.signal })
    } catch (error) {
      say({ event: 'stopped', worker: this.name, reason: this.job.stopReason })
      throw error
    }
  }

  charge (value) { return this.job.charge(value) }

  progress (value) { return this.job.saveProgress(value).then(() => {}) }

  async read_inputs () {
    const found = (await this.job.inputs()).sort((one, other) => one.jobId - other.jobId)
    this.inputs = found.map(({ queue, task, state, result, error }) => ({ queue, task, state, result, error }))
  }

  async step (name, _, action) {
    this.stepped = await this.job.step(name, async (client) => {
      await this.all(action.do ?? [], client)
      return this.fill(action.result)
    })
  }

  async transaction (actions, _, action) {
    const work = async (client) => {
      await this.all(actions, client)
      return this.fill(action.result)
    }
    try {
      await this.argument.transaction(work)
    } catch (error) {
      if (!error.code || !action.else) throw error
      return { returns: await this.all(action.else) }
    }
  }

  complete (_, client) { return this.job.complete(client) }

  async sql (text, client) {
    for (const job of this.jobs) {
      await client.query(text.replaceAll('{job_id}', job.jobId).replaceAll('{id}', job.id)
          .replaceAll('{attempt}', job.attempt))
    }
  }

  async enqueue (job, client) { await queue.enqueueMany(client, job.queue, job.payloads, options(job.options)) }
}

const log = ({ jobId }, text) => say({ event: 'log', text: jobId ? `job ${jobId}: ${text}` : text })
const logger = { debug () {}, info: log, warn: log, error: log }
const KINDS = ['started', 'completed', 'advanced', 'suspended', 'failed', 'released', 'lost', 'connected',
    'disconnected']

function start (call) {
  const name = call.worker
  const gates = new Set()
  const given = options(call.options)
  const effects = call.effects && configs(call.effects)
  const worker = new Worker(configs(call.connection), { ...given, effects, codec: later(given.codec), logger })
  for (const { queue, stage, batch, timeout, do: actions } of call.handlers) {
    const from = stage === undefined ? queue : { queue, stage }
    const more = options({ timeout })
    const many = (found) => new Handling(name, gates, found.jobs, found).all(actions)
    if (batch) worker.handleBatch(from, batch, many, more)
    else worker.handle(from, (job) => new Handling(name, gates, [job], job).all(actions), more)
  }
  for (const kind of KINDS) {
    worker.on(kind, ({ queue, jobId, attemptId, attempt, error }) => {
      say({ event: 'worker', worker: name, kind, queue, job_id: jobId ?? 0, attempt_id: attemptId, attempt, error })
    })
  }
  running.set(name, { worker, gates })
  const ended = (error) => {
    say({ event: 'ended', worker: name, error })
    // A worker that handles signals ends with its process.
    if (call.mode === 'run') process.exit(0)
  }
  worker[call.mode]().then(() => ended(null), (error) => ended(error.message))
}

const PRODUCERS = {
  enqueue (client, { queue: name, payload, payloads, options: more }) {
    if (payloads) return queue.enqueueMany(client, name, payloads, options(more))
    return queue.enqueue(client, name, payload === undefined ? {} : payload, options(more))
  },
  publish: async (client, { topic, payload, options: more }) =>
      Object.fromEntries(await queue.publish(client, topic, payload, options(more))),
  enqueue_flow (client, { queue: name, tasks = [], payload = {}, flow }) {
    return queue.enqueueFlow(client, name, { tasks: tasks.map(options), payload, ...options(flow) })
  },
  seal: (client, { flow }) => queue.seal(client, flow),
  resolve: (client, { flow, result }) => queue.resolve(client, flow, result),
  reject: (client, { flow, error }) => queue.reject(client, flow, error)
}

async function produce (call) {
  const client = new Client(configs(call.connection)[0])
  await client.connect()
  try {
    await client.query('BEGIN')
    const result = await PRODUCERS[call.call](client, call)
    await client.query(call.rollback ? 'ROLLBACK' : 'COMMIT')
    return result ?? null
  } finally {
    await client.end()
  }
}

async function perform (call) {
  if (call.call in PRODUCERS) return produce(call)
  if (call.call === 'start') start(call)
  if (call.call === 'stop') running.get(call.worker).worker.stop()
  if (call.call === 'go') running.get(call.worker).gates.add(call.gate)
  return null
}

say({ event: 'hello', has: ['surrogates', 'unserialisable', 'integers', 'deaf', 'trace', 'untyped', 'status'] })
const lines = readline.createInterface({ input: process.stdin })
lines.on('line', (line) => {
  const call = parseJson(line)
  perform(call).then((result) => say({ id: call.id, result }),
      (error) => say({ id: call.id, error: error.message, sqlstate: error.code ?? null }))
})
lines.on('close', () => process.exit(0))
