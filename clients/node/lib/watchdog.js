'use strict'
// Ends a process whose worker makes no progress, so that its supervisor starts another one.
//
// A worker whose event loop is blocked sends no heartbeats: its leases expire, and other workers get its jobs. The
// watchdog is a thread, because code on that loop would be blocked, too. A thread cannot choose the exit status of its
// process, so it ends the process by SIGKILL.

const fs = require('node:fs')
const { Worker: Thread } = require('node:worker_threads')

const STATUS = 70 // EX_SOFTWARE

const WATCH = `
  const { workerData: { shared, limit, pid } } = require('node:worker_threads')
  const pulse = new Int32Array(shared)
  let before = -1
  for (;;) {
    // A sleep: nothing wakes it.
    Atomics.wait(pulse, 1, 0, limit)
    if (Atomics.load(pulse, 1)) break
    const now = Atomics.load(pulse, 0)
    if (now === before) {
      require('node:fs').writeSync(2,
          'pg_queue: the worker makes no progress: its event loop is blocked; its process ends\\n')
      process.kill(pid, 'SIGKILL')
    }
    before = now
  }`

// Returns a function that ends the watch.
function watch (limit, isStuck) {
  const shared = new SharedArrayBuffer(8)
  const pulse = new Int32Array(shared)
  const beat = setInterval(() => {
    Atomics.add(pulse, 0, 1)
    if (!isStuck()) return
    fs.writeSync(2, 'pg_queue: the worker makes no progress: ' +
      'all its handlers go on after they were told to stop; its process ends\n')
    process.exit(STATUS)
  }, limit / 8)
  const thread = new Thread(WATCH, { eval: true, workerData: { shared, limit, pid: process.pid } })
  thread.unref()
  return () => {
    clearInterval(beat)
    Atomics.store(pulse, 1, 1)
    Atomics.notify(pulse, 1)
  }
}

module.exports = { watch }
