'use strict'
// The pauses between failing attempts, and how often failures are logged.

const REMINDER = 60000 // After how many milliseconds a failure that persists is logged again.

// The connection is gone, or the server accepts no writes: the worker connects anew, maybe to another host.
class Gone extends Error {}

// No connection can be made for a handler: the server accepts no more, or this process has no more files.
class NoConnection extends Error {}

class Backoff {
  constructor () { this.reset() }

  reset () {
    this.failures = 0
    this.said = new Map()
  }

  // Returns how long to wait until the next attempt. Logs the failure if it is a new one, or if it was last logged a
  // minute ago.
  failed (log, what, error) {
    const text = lineOf(error)
    const now = performance.now()
    if (now - (this.said.get(text) ?? -REMINDER) >= REMINDER) {
      this.said.set(text, now)
      if (error instanceof Gone) log.warn({}, `no connection for ${what}s, the worker tries again: ${text}`)
      else log.error({}, `a ${what} has failed, the worker tries again: ${text}`)
    }
    return Math.min(100 * 2 ** Math.min(++this.failures, 10), 10000) * (0.5 + Math.random() / 2)
  }
}

// Returns the server's message with its hint. If the driver has tried several addresses, only their errors have
// messages.
function lineOf (error) {
  const texts = error.message || error.errors?.map((one) => one.message).join('; ') || String(error)
  return [texts, error.hint].filter(Boolean).join(' Hint: ').replace(/\s+/g, ' ').trim()
}

module.exports = { Backoff, Gone, NoConnection, lineOf }
