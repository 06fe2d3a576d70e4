'use strict'
// Ends a process whose worker makes no progress, so that its supervisor starts another one.
//
// A worker whose event loop is blocked sends no heartbeats: its leases expire, and other workers get its jobs. The
// watchdog is a thread, because code on that loop would be blocked, too. A thread cannot choose the exit status of its
// process, so it ends the process by SIGKILL. The log may be what blocks that loop: the process ends without its last
// message if that cannot be written.

const { spawn } = require('node:child_process')
const fs = require('node:fs')
const { Worker: Thread } = require('node:worker_threads')

const STATUS = 70 // EX_SOFTWARE
const LAST_MESSAGE_MS = 1000 // how long the end of the process waits for its last message
const message = (reason) => `pg_queue: the worker makes no progress: ${reason}; its process ends\n`

const WATCH = `
  const { workerData: { shared, limit, pid, message, patience } } = require('node:worker_threads')
  const pulse = new Int32Array(shared)
  let before = -1
  for (;;) {
    const begun = performance.now()
    // A sleep: nothing wakes it.
    Atomics.wait(pulse, 1, 0, limit)
    if (Atomics.load(pulse, 1)) break
    const now = Atomics.load(pulse, 0)
    // After a longer sleep the whole process had stood still.
    const hasStoodStill = performance.now() - begun > 1.25 * limit
    if (now === before && !hasStoodStill) {
      const end = () => process.kill(pid, 'SIGKILL')
      setTimeout(end, patience)
      require('node:fs').write(2, message, end)
      break
    }
    before = hasStoodStill ? -1 : now
  }`

// Returns a function that ends the watch.
function watch (limit, isStuck) {
  const shared = new SharedArrayBuffer(8)
  const pulse = new Int32Array(shared)
  let isEnding = false
  const beat = setInterval(() => {
    Atomics.add(pulse, 0, 1)
    if (isEnding || !isStuck()) return
    isEnding = true
    const end = () => {
      // The exit waits for system calls in libuv's threads, such as reads of a file system that does not answer.
      const killer = spawn('sh', ['-c', `sleep 2; kill -KILL ${process.pid}`], { detached: true, stdio: 'ignore' })
      killer.on('error', () => {})
      process.exit(STATUS)
    }
    setTimeout(end, LAST_MESSAGE_MS)
    fs.write(2, message('all its handlers go on after they were told to stop'), end)
  }, limit / 8)
  const workerData = { shared, limit, pid: process.pid, message: message('its event loop is blocked'),
    patience: LAST_MESSAGE_MS }
  const thread = new Thread(WATCH, { eval: true, workerData })
  thread.unref()
  return () => {
    clearInterval(beat)
    Atomics.store(pulse, 1, 1)
    Atomics.notify(pulse, 1)
  }
}

module.exports = { watch }
