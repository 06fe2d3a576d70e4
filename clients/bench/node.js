'use strict'
// A contender for Node: `node node.js CONTENDER setup|drain|latency CONFIG COUNT`, prints what it has measured as JSON.
//
// The same for each: an empty handler, 20 at once, one process. The rate counts from before the worker connects until
// it has stopped, with all completions told. The latency is from before the enqueue on a connection of its own to the
// handler.

const { Client } = require('pg')

const CONCURRENCY = 20
const AHEAD = 200

const settle = () => { let done; const promise = new Promise((resolve) => { done = resolve });
return { promise, done } }

const contenders = {
  async 'pg-queue' (config, options = {}) {
    const { Worker, enqueue } = require('../node')
    let handler
    const worker = new Worker(config, { concurrency: CONCURRENCY, ...options }).handle('bench', () => handler())
    let served
    return {
      sql: { setup: "CREATE EXTENSION pg_queue; SELECT queue.create('bench')",
          fill: "SELECT queue.enqueue_many('bench', array_fill('{}'::jsonb, ARRAY[$1::int]))" },
      enqueue: (client) => enqueue(client, 'bench'),
      start: async (call) => { handler = call; served = worker.serve() },
      stop: async () => { worker.stop(); await served }
    }
  },
  'pg-queue, ahead': (config) => contenders['pg-queue'](config, { prefetch: AHEAD }),
  async 'graphile-worker' (config, worker = {}) {
    const { Logger, run, runMigrations } = require('graphile-worker')
    const logger = new Logger(() => () => {})
    const connectionString = `postgresql:///${config.database}?host=${encodeURIComponent(
        config.host)}&port=5432&user=postgres`
    const preset = { worker: { connectionString, concurrentJobs: CONCURRENCY, maxPoolSize: CONCURRENCY + 2, logger,
        ...worker } }
    let runner
    return {
      migrate: () => runMigrations({ preset }),
      sql: { fill: "SELECT count(graphile_worker.add_job('bench', '{}')) FROM generate_series(1, $1::int)" },
      enqueue: (client) => client.query("SELECT graphile_worker.add_job('bench', '{}')"),
      start: async (call) => { runner = await run(
          { preset, noHandleSignals: true, taskList: { bench: async () => call() } }) },
      stop: () => runner.stop()
    }
  },
  'graphile-worker, ahead': (config) =>
    contenders['graphile-worker'](config, { localQueue: { size: AHEAD }, completeJobBatchDelay: 0,
        failJobBatchDelay: 0 })
}

async function main (name, what, config, count) {
  const contender = await contenders[name](config)
  const client = new Client(config)
  await client.connect()
  if (what === 'setup') {
    await contender.migrate?.()
    if (contender.sql.setup) await client.query(contender.sql.setup)
  } else if (what === 'drain') {
    await client.query(contender.sql.fill, [count])
    await client.query('VACUUM ANALYZE') // what autovacuum does some time after a fill
    const all = settle()
    let left = count
    const begun = performance.now()
    await contender.start(() => { if (--left === 0) all.done() })
    await all.promise
    await contender.stop()
    console.log(JSON.stringify({ rate: count / (performance.now() - begun) * 1000 }))
  } else {
    let next = settle()
    await contender.start(() => next.done(performance.now()))
    const waits = []
    for (let n = 0; n < count; n++) {
      next = settle()
      // It has gone to sleep again.
      await new Promise((resolve) => setTimeout(resolve, 50))
      const begun = performance.now()
      await contender.enqueue(client)
      waits.push(await next.promise - begun)
    }
    await contender.stop()
    waits.sort((a, b) => a - b)
    console.log(JSON.stringify({ p50: waits[count >> 1], p95: waits[Math.floor(count * 0.95)] }))
  }
  await client.end()
}

main(process.argv[2], process.argv[3], JSON.parse(process.argv[4]), Number(process.argv[5])).then(() => process.exit())
