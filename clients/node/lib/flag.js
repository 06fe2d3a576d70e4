'use strict'
// A flag, and how the parts of a worker wait for it. Responsible for wakes and limits; not for what the flag means.

const LONGEST = 2 ** 31 - 1 // The longest delay of a timer of Node.

class Flag {
  constructor () { this.isSet = false; this.waiting = new Set() }

  set () {
    this.isSet = true
    for (const wake of this.waiting) wake()
  }

  clear () { this.isSet = false }

  // Waits until it is set, for at most a time in milliseconds.
  wait (limit = LONGEST) {
    if (this.isSet) return Promise.resolve()
    return new Promise((resolve) => {
      const wake = () => { clearTimeout(timer); this.waiting.delete(wake); resolve() }
      const timer = setTimeout(wake, Math.min(limit, LONGEST))
      this.waiting.add(wake)
    })
  }

  // Waits for a promise until the flag is set. Rejects as the promise does, but not any more when the flag is set.
  async unlessSet (promise) {
    promise.catch(() => {}) // it may fail later
    let wake
    const set = new Promise((resolve) => { wake = resolve })
    this.waiting.add(wake)
    if (this.isSet) wake()
    try {
      await Promise.race([promise, set])
    } finally {
      this.waiting.delete(wake)
    }
  }
}

module.exports = { Flag, LONGEST }
