'use strict'
// The worker as its user sees it: its options, its handlers, and how to run it. `engine` runs it.

const { EventEmitter } = require('node:events')
const os = require('node:os')
const { boolean, finite, integer, interval, kindOf, milliseconds, only, refuse, some, text } = require('./checks')
const { Engine } = require('./engine')
const { LOGGER } = require('./logger')

const DEFAULTS = { concurrency: 10, prefetch: 0, maxConnections: Infinity, wait: 15000, linger: 0, heartbeat: 10000,
    disconnect: 5000, shutdownTimeout: 30000, trace: false, onUnknown: 'release' }

// The options, each with its check.
const OPTIONS = {
  concurrency: (value, name) => integer(value, name, 1),
  prefetch: (value, name) => integer(value, name, 0),
  maxConnections: (value, name) => value === Infinity ? value : integer(value, name, 1),
  wait: finite,
  linger: finite,
  heartbeat: some,
  shutdownTimeout: milliseconds,
  stallTimeout: (value, name) => finite(some(value, name), name),
  timeout: some,
  lease: checkLease,
  name: text,
  disconnect: finite,
  trace: boolean,
  onUnknown: (value) => ['release', 'fail'].includes(value) || refuse('onUnknown', "'release' or 'fail'", value),
  codec: (value, name) => has(value, name, 'a codec', ['encode', 'decode']),
  logger: (value, name) => has(value, name, 'a logger', ['debug', 'info', 'warn', 'error']),
  effects: (value, name) => [value].flat().forEach((host) => checkHost(host, name))
}

const KINDS = ['started', 'completed', 'advanced', 'suspended', 'failed', 'released', 'lost', 'connected',
    'disconnected']

function has (value, name, what, methods) {
  if (methods.every((method) => typeof value?.[method] === 'function')) return
  refuse(name, `${what} with the methods ${methods.join(', ')}`, value)
}

// The server says of all other texts what is wrong with them.
function checkLease (value, name) {
  interval(value, name)
  if (typeof value === 'number') finite(some(value, name), name)
  if (/^\s*[+-]?\s*infinity\s*$/i.test(value)) refuse(name, 'a finite length of time', value)
}

function checkHost (host, name) {
  if (typeof host === 'string') return
  if (typeof host !== 'object' || host === null) refuse(name, 'a text or an object, as for a client of pg', host)
  if (typeof host.query === 'function') {
    throw new TypeError(`${name} is a configuration, as for a client of pg, not ${kindOf(host)}`)
  }
  const option = Object.keys(host).find((key) => Object.hasOwn(OPTIONS, key))
  if (option) throw new TypeError(`${option} is an option of the worker: give options as the second argument`)
}

class Worker extends EventEmitter {
  #engine = null
  #isToldToStop = false // stop() was called before run()
  #middleware = []

  constructor (connection = {}, options = {}) {
    super()
    only(options, Object.keys(OPTIONS), 'a worker has no option')
    for (const [name, value] of Object.entries(options)) {
      if (value !== undefined && value !== null) OPTIONS[name](value, name)
    }
    this.hosts = [connection].flat()
    for (const host of this.hosts) checkHost(host, 'connection')
    this.effects = options.effects && [options.effects].flat()
    const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined))
    this.options = { ...DEFAULTS, logger: LOGGER, name: `${os.hostname()}:${process.pid}`, ...given }
    this.handlers = new Map() // queue -> stage, or null for all stages without a handler of their own -> its handler
  }

  // `queues`: queues, or { queue, stage } for the jobs of one stage.
  handle (queues, handler, options = {}) { return this.#add(queues, { handler }, options) }

  #add (queues, { handler, size }, options) {
    if (typeof handler !== 'function') refuse('a handler', 'a function', handler)
    only(options, ['timeout'], 'a handler has no option')
    if ((options.timeout ?? null) !== null) some(options.timeout, 'timeout')
    const entry = { handler, size, timeout: options.timeout }
    for (const one of [queues].flat()) {
      if (one === null || typeof one !== 'object') text(one, 'a queue')
      else only(one, ['queue', 'stage'], 'the jobs of a handler have no')
      const { queue, stage = null } = typeof one === 'string' ? { queue: one } : one
      text(queue, 'a queue')
      if (stage !== null) text(stage, 'stage')
      if (!this.handlers.has(queue)) this.handlers.set(queue, new Map())
      const ofStage = stage === null ? '' : ` for stage ${stage}`
      if (this.handlers.get(queue).has(stage)) throw new Error(`queue ${queue} has a handler${ofStage}`)
      this.handlers.get(queue).set(stage, entry)
    }
    if (this.handlers.size > 8) throw new RangeError('a worker has at most eight queues')
    return this
  }

  handleBatch (queues, size, handler, options = {}) {
    return this.#add(queues, { handler, size: integer(size, 'the size of a batch', 1) }, options)
  }

  use (around) {
    if (typeof around !== 'function') refuse('a middleware', 'a function', around)
    this.#middleware.push(around)
    return this
  }

  // Returns the handlers: queue -> stage or null -> `call`, and the `size` of its batches if it takes batches. A call
  // for one job is within the middleware. The first middleware is the outermost one.
  bound () {
    const within = ({ handler, size, timeout }) => ({ call: size ? handler : this.#within(handler), size, timeout })
    const ofQueue = (stages) => new Map([...stages].map(([stage, entry]) => [stage, within(entry)]))
    return new Map([...this.handlers].map(([queue, stages]) => [queue, ofQueue(stages)]))
  }

  #within (handler) {
    if (!this.#middleware.length) return handler
    return async (job) => {
      let isCalled = false
      const first = (job) => { isCalled = true; return handler(job) }
      const result = await this.#middleware.reduceRight((call, around) => (job) => around(job, call), first)(job)
      const isDone = isCalled || job.ended || (result ?? null) !== null
      if (!isDone) throw new Error('a middleware has not called the handler')
      return result
    }
  }

  // Only events that exist can be listened for.
  on (kind, listener) {
    const known = [...KINDS, 'newListener', 'removeListener']
    if (!known.includes(kind)) throw new TypeError(`a worker has no event ${String(kind)}; it has ${KINDS.join(', ')}`)
    return super.on(kind, listener)
  }

  // Works until SIGTERM, SIGINT or `stop`. Then it waits for the handlers, and releases the remaining jobs. A second
  // signal ends the wait.
  async run () {
    const stop = () => this.stop()
    process.on('SIGTERM', stop).on('SIGINT', stop)
    try {
      await this.#serve(false)
    } finally {
      process.off('SIGTERM', stop).off('SIGINT', stop)
    }
  }

  // Works until `stop`, and does not handle signals.
  serve () { return this.#serve(false) }

  // If the worker does not run yet, it stops as soon as it starts.
  stop () {
    if (this.#engine) this.#engine.stop()
    else this.#isToldToStop = true
  }

  // Runs all jobs that are ready now, and returns the events.
  async drain () {
    const events = []
    await this.#serve(true, (event) => events.push(event))
    return events
  }

  // Returns how many jobs a claim collects if it lingers. Undefined: it cannot.
  collected () {
    const [handler, ...more] = [...this.handlers.values()].flatMap((stages) => [...stages.values()])
    return more.length ? undefined : handler.size
  }

  async #serve (isDrain, watch) {
    if (!this.handlers.size) throw new Error('a worker needs a handler')
    if (this.options.linger && !this.collected()) {
      throw new Error('linger needs one handler, of batches; if its queue has stages, of one of them')
    }
    if (this.#engine) throw new Error('this worker runs already')
    this.#engine = new Engine(this, isDrain, watch)
    if (this.#isToldToStop) this.#engine.stop()
    this.#isToldToStop = false
    try {
      await this.#engine.serve()
    } finally {
      this.#engine = null
    }
  }
}

module.exports = { Worker }
