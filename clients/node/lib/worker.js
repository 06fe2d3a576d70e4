'use strict'
// The worker as its user sees it: its options, its handlers, and how to run it. `engine` runs it.

const { EventEmitter } = require('node:events')
const os = require('node:os')
const { Engine } = require('./engine')

const DEFAULTS = { concurrency: 10, prefetch: 0, wait: 10000, heartbeat: 10000, shutdownTimeout: 30000,
    sessionBound: false }

const KNOWN = new Set([...Object.keys(DEFAULTS), 'lease', 'stage', 'stallTimeout', 'name', 'logger'])

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
    this.options = { ...DEFAULTS, logger: LOGGER, name: `${os.hostname()}:${process.pid}`, ...options }
    if (!(this.options.concurrency >= 1 && this.options.prefetch >= 0)) {
      throw new RangeError('concurrency must be at least 1, and prefetch not negative')
    }
    this.handlers = new Map()
    this.batches = new Map()
  }

  handle (queues, handler, ...more) {
    if (typeof handler !== 'function') throw new TypeError('a handler is a function')
    if (more.length) throw new TypeError('a handler has no options: the worker has them')
    for (const queue of [queues].flat()) {
      if (this.handlers.has(queue)) throw new Error(`queue ${queue} has a handler`)
      this.handlers.set(queue, handler)
    }
    if (this.handlers.size > 8) throw new RangeError('a worker has at most eight queues')
    return this
  }

  handleBatch (queues, size, handler, ...more) {
    if (!Number.isInteger(size) || size < 1) throw new RangeError('the size of a batch is at least 1')
    this.handle(queues, handler, ...more)
    for (const queue of [queues].flat()) this.batches.set(queue, Math.max(size, 1))
    return this
  }

  use (around) {
    this.#middleware.push(around)
    return this
  }

  // Returns the queue's handler within the middleware, of which the first one is the outermost.
  bound (queue) {
    if (this.batches.has(queue)) return this.handlers.get(queue)
    return this.#middleware.reduceRight((call, around) => (job) => around(job, call), this.handlers.get(queue))
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

  async #serve (isDrain, watch) {
    if (!this.handlers.size) throw new Error('a worker needs a handler')
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
