'use strict'
// How an attempt ends: what follows from what its handler has returned or thrown, as `queue.end_batch` reads it.

const { inspect } = require('node:util')
const { array, interval, time } = require('./checks')
const { NoConnection } = require('./connection')
const { stringify } = require('./json')
const { Advance, AlreadyDone, Fatal, RetryIn, Snooze, Stopped, Suspend, Throttle } = require('./outcomes')

const EVENTS = { complete: 'completed', advance: 'advanced', suspend: 'suspended', fail: 'failed', release: 'released',
    none: 'completed' }

const LACK_PAUSE = 5000 // For how long a job is released if there is no connection for its handler.
const MAX_CAUSES = 5 // How many causes of an error its text names.
const MAX_TRACE = 4096 // How many characters of the trace are kept with the error.

// `kind` is the function that ends the attempt, `args` are its arguments except the id. `none`: the handler
// itself has ended the attempt, or its lease is lost. Throws if an argument cannot be written as JSON.
class Ending {
  isDoubtful = false // the handler has ended the attempt, maybe in a transaction that has rolled back

  constructor (kind, args = null) {
    this.kind = kind
    this.args = args
    this.more = args ? stringify(args).slice(1, -1) : '' // the arguments as JSON
  }

  json (id) { return `{"${this.kind}":{"id":${id}${this.more && `,${this.more}`}}}` }
  // The result of a completion as JSON.
  get result () { return this.more.slice('"result":'.length) || 'null' }
  get event () { return EVENTS[this.kind] }
  get error () { return this.args?.error ?? null }

  // True if nothing else can be sent in its place when the server refuses it: a failure with the queue's own backoff.
  get isLastResort () { return this.kind === 'fail' && (this.args?.retry_in ?? null) === null }
}

const BARE = new Ending('complete') // a completion without a result, as most attempts end

// Returns whether an attempt whose handler has returned this ends by a completion without a result.
const isBare = (job, result) => (result === undefined || result === null) && !job.open && !job.ended

// Returns the end of an attempt whose handler has returned this. Throws if that cannot be an end.
async function returned (job, result, log) {
  if (job.open) throw new Error('the handler returned before its job.transaction had ended: await it')
  if (job.ended) {
    if (result !== undefined && result !== null && result !== job.returned) {
      log.warn(job.toJSON(), 'a handler has ended its job and returned a result, which is not kept')
    }
    // The server knows whether the handler's own call has committed. If so, it answers that this end comes too late.
    const isUnsure = job.ownEnd && !job.committed
    return isUnsure ? Object.assign(new Ending(...job.ownEnd), { isDoubtful: true }) : new Ending('none')
  }
  if (result instanceof Advance) {
    const payload = await job.stored(result.payload, 'payload')
    return new Ending('advance', { stage: result.stage, payload, delay: interval(result.delay) })
  }
  if (result instanceof Suspend) {
    const { after, upon, progress, until } = result
    const jobs = after && array(after, 'after', 'job ids').map(Number)
    const more = { progress: await job.stored(progress, 'progress'), ...(until && { until: time(until, 'until') }) }
    return new Ending('suspend', { after: jobs, upon, ...more })
  }
  const stored = await job.stored(result, 'result')
  return stored === null ? BARE : new Ending('complete', { result: stored })
}

// Returns the end of a stopped attempt: a release, which cancels a job that is to be cancelled. If the lease is lost,
// nothing is sent.
function stopped (job) {
  const late = `the handler has not ended within its timeout of ${job.timeout} ms`
  if (job.stopReason === 'timeout') return new Ending('fail', { error: late })
  return new Ending(job.stopReason === 'lost' ? 'none' : 'release')
}

// Returns the end of an attempt whose handler has thrown this.
function threw (job, error, { log, trace }) {
  job.open?.catch(() => {}) // nobody awaits it any more; what the server answers for the attempt counts
  if ((job.isDone && !job.ownEnd) || job.committed) {
    const text = `a job has ended, and its handler has failed since: ${textOf(error)}`
    log.warn({ ...job.toJSON(), stack: error?.stack }, text)
    return new Ending('none')
  }
  return Object.assign(unfinished(job, error, { log, trace }), { isDoubtful: job.ended })
}

function unfinished (job, error, { log, trace }) {
  if (error instanceof Stopped || (job.stopReason && error?.name === 'AbortError')) return stopped(job)
  if (error instanceof AlreadyDone) return new Ending('complete')
  if (error instanceof Throttle) {
    const throttle = error.group ? 'group' : 'queue'
    return new Ending('release', { delay: interval(error.delay), throttle })
  }
  if (error instanceof Snooze) return new Ending('release', { delay: interval(error.delay) })
  if (error instanceof NoConnection) {
    const reason = `a job lacks a connection: ${error.message}`
    log.warn(job.toJSON(), `${reason}: it is released for ${LACK_PAUSE / 1000} seconds`)
    return new Ending('release', { delay: interval(LACK_PAUSE), reason })
  }
  const text = withCauses(error)
  log.warn({ ...job.toJSON(), stack: error?.stack }, `a job has failed: ${text}`)
  const isExpected = error instanceof RetryIn || error instanceof Fatal
  const lines = trace && !isExpected && error?.stack ? `\n${String(error.stack).slice(0, MAX_TRACE)}` : ''
  const retryIn = error instanceof RetryIn ? interval(error.delay) : null
  return new Ending('fail', { error: text + lines, retry_in: retryIn, fatal: error instanceof Fatal })
}

// Any value can be thrown, even one without a text.
function textOf (error) {
  if (error instanceof RetryIn || error instanceof Fatal) return String(error.message)
  const isPlain = typeof error === 'object' && error !== null && !(error instanceof Error)
  const hasText = !isPlain || ![undefined, Object.prototype.toString].includes(error.toString)
  return hasText ? String(error) : inspect(error, { breakLength: Infinity })
}

// Returns the text of an error and of what has caused it.
function withCauses (error) {
  let text = textOf(error)
  let found = causes(error)
  for (let n = 0; n < MAX_CAUSES && found.length; n++) {
    const [cause, ...more] = found
    if (!text.includes(textOf(cause))) text += `: ${textOf(cause)}`
    found = [...more, ...causes(cause)]
  }
  return text
}

const causes = (error) => [error?.cause, ...(Array.isArray(error?.errors) ? error.errors : [])].filter((one) => one)

// Returns what was thrown, or an error in its place if its fields or its message raise errors when they are read.
function readable (thrown) {
  try {
    withCauses(thrown)
    return [thrown?.name, thrown?.code, thrown?.stack] && thrown
  } catch (failure) {
    return new Error(`its message could not be read: ${nameOf(failure)}`)
  }
}

// The name of an error that was raised by reading another one.
function nameOf (error) {
  try { return String(error?.name) } catch { return 'another error' }
}

// The message of any thrown value, also of one that cannot be read.
function saidBy (error) {
  try { return String(error?.message ?? error) } catch { return 'an error without a text' }
}

module.exports = { BARE, Ending, isBare, readable, returned, saidBy, stopped, threw }
