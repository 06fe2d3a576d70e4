'use strict'
// The worker as its user sees it: its options, its handlers, and how to run it. `engine` runs it.

const { EventEmitter } = require('node:events')
const os = require('node:os')
const { Engine } = require('./engine')

const DEFAULTS = { concurrency: 10, prefetch: 0, wait: 10000, linger: 0, heartbeat: 10000, shutdownTimeout: 30000,
    sessionBound: false, onUnknown: 'release' }

const KNOWN = new Set([...Object.keys(DEFAULTS), 'codec', 'effects', 'lease', 'stage', 'stallTimeout', 'name',
    'logger'])

// One line of JSON for each message, to stderr.
const log = (level) => (fields, message) => console.error(JSON.stringify({ level, message, ...fields }))
const LOGGER = { debug () {}, info: log('info'), warn: log('warn'), error: log('error') }

class Worker extends EventEmitter {
  #engine = null
  #isToldToStop = false // stop() was called before run()
  #middleware = []

  constructor (connection = {}, options = {}) {
    super()
    const unknown = Object.keys(options).find((name) => !KNOWN.has(name))
    if (unknown !== undefined) throw new TypeError(`a worker has no option ${unknown}; it has ${[...KNOWN].join(', ')}`)
    this.hosts = Array.isArray(connection) ? connection : [connection]
    this.effects = options.effects && [options.effects].flat()
    this.options = { ...DEFAULTS, logger: LOGGER, name: `${os.hostname()}:${process.pid}`, ...options }
    if (!(this.options.concurrency >= 1 && this.options.prefetch >= 0)) {
      throw new RangeError('concurrency must be at least 1, and prefetch not negative')
    }
    if (!['release', 'fail'].includes(this.options.onUnknown)) {
      throw new RangeError("onUnknown must be 'release' or 'fail'")
    }
    this.handlers = new Map() // queue -> stage, or null for all stages without a handler of their own -> its handler
  }

  // `queues`: queues, or { queue, stage } for the jobs of one stage.
  handle (queues, handler, ...more) {
    if (typeof handler !== 'function') throw new TypeError('a handler is a function')
    if (more.length) throw new TypeError('a handler has no options: the worker has them')
    return this.#add(queues, { handler })
  }

  #add (queues, entry) {
    for (const one of [queues].flat()) {
      const { queue, stage = null } = typeof one === 'string' ? { queue: one } : one
      if (!this.handlers.has(queue)) this.handlers.set(queue, new Map())
      const ofStage = stage === null ? '' : ` for stage ${stage}`
      if (this.handlers.get(queue).has(stage)) throw new Error(`queue ${queue} has a handler${ofStage}`)
      this.handlers.get(queue).set(stage, entry)
    }
    if (this.handlers.size > 8) throw new RangeError('a worker has at most eight queues')
    return this
  }

  handleBatch (queues, size, handler, ...more) {
    if (!Number.isInteger(size) || size < 1) throw new RangeError('the size of a batch is at least 1')
    if (typeof handler !== 'function') throw new TypeError('a handler is a function')
    if (more.length) throw new TypeError('a handler has no options: the worker has them')
    return this.#add(queues, { handler, size })
  }

  use (around) {
    this.#middleware.push(around)
    return this
  }

  // Returns the handlers: queue -> stage or null -> `call`, and the `size` of its batches if it takes batches. A call
  // for one job is within the middleware. The first middleware is the outermost one.
  bound () {
    const within = ({ handler, size }) => size
      ? { call: handler, size }
      : { call: this.#middleware.reduceRight((call, around) => (job) => around(job, call), handler) }
    const ofQueue = (stages) => new Map([...stages].map(([stage, entry]) => [stage, within(entry)]))
    return new Map([...this.handlers].map(([queue, stages]) => [queue, ofQueue(stages)]))
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
    const [stages, ...more] = this.handlers.values()
    return more.length ? undefined : (stages.get(this.options.stage ?? null) ?? stages.get(null))?.size
  }

  async #serve (isDrain, watch) {
    if (!this.handlers.size) throw new Error('a worker needs a handler')
    if (this.options.linger && !this.collected()) {
      throw new Error('linger needs one queue with a batch handler; if it has stages, set stage to one of them')
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
