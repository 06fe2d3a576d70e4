'use strict'
// A contender for Node: `node node.js CONTENDER setup|fill|drain|latency|loud|work CONFIG COUNT`. `run` starts it.
//
// It prints the measurement as JSON. `work` prints the number of each job that has run, a line each, until it
// is stopped.
//
// Each contender has an empty handler, 20 handlers together, and one process. The rate counts from before the worker
// connects until it has stopped and all completions are confirmed. The latency counts from before the enqueue, on
// another connection, to the handler.

const { Client } = require('pg')

const CONCURRENCY = 20
const AHEAD = 200
const BATCH = 1000

const settle = () => { let done; const promise = new Promise((resolve) => { done = resolve });
return { promise, done } }
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
const url = (config) => `postgresql://postgres@localhost:${config.port}/${config.database}?host=${
    encodeURIComponent(config.host)}`

// Calls `send` with the numbers from 1 to `count`, some calls together.
async function inBatches (count, send) {
  for (let from = 1; from <= count; from += BATCH) {
    await send(Array.from({ length: Math.min(BATCH, count + 1 - from) }, (_, i) => from + i))
  }
}

// Each contender has `setup`, `fill(count, group)`, `enqueue(number, group)`, `start(call)`, `stop`, and `waiting`, SQL
// that counts the waiting jobs. The payload of a job is its number. A group is a tenant. Contenders without groups
// ignore it.
const contenders = {
  async 'pg-queue' (config, client, options = {}) {
    const { Worker, enqueue } = require('../node')
    let handler
    const worker = new Worker(config, { concurrency: CONCURRENCY, ...options })
      .handle('bench', (job) => handler(job.payload))
    let served
    return {
      waiting: "SELECT ready FROM queue.stats WHERE queue_name = 'bench'",
      setup: () => client.query("CREATE EXTENSION pg_queue; SELECT queue.create('bench', max_running_per_group => 10)"),
      fill: (count, group) => client.query(
        `SELECT queue.enqueue_many('bench', ARRAY(SELECT to_jsonb(n) FROM generate_series(1, $1) AS n),
             group_key => $2)`, [count, group]),
      enqueue: (number, group) => enqueue(client, 'bench', number, { groupKey: group }),
      start: async (call) => { handler = call; served = worker.serve() },
      stop: async () => { worker.stop(); await served }
    }
  },
  'pg-queue, ahead': (config, client) => contenders['pg-queue'](config, client, { prefetch: AHEAD }),
  async 'graphile-worker' (config, client, worker = {}) {
    const { Logger, run, runMigrations } = require('graphile-worker')
    const logger = new Logger(() => () => {})
    const preset = { worker: { connectionString: url(config), concurrentJobs: CONCURRENCY,
        maxPoolSize: CONCURRENCY + 2, logger, ...worker } }
    let runner
    return {
      waiting: 'SELECT count(*) FROM graphile_worker.jobs WHERE locked_at IS NULL',
      setup: () => runMigrations({ preset }),
      fill: (count) => client.query(
        "SELECT count(graphile_worker.add_job('bench', to_json(n))) FROM generate_series(1, $1::int) AS n", [count]),
      enqueue: (number) => client.query("SELECT graphile_worker.add_job('bench', to_json($1::int))", [number]),
      start: async (call) => { runner = await run(
          { preset, noHandleSignals: true, taskList: { bench: async (payload) => call(payload) } }) },
      stop: () => runner.stop()
    }
  },
  'graphile-worker, ahead': (config, client) =>
    contenders['graphile-worker'](config, client, { localQueue: { size: AHEAD }, completeJobBatchDelay: 0,
        failJobBatchDelay: 0 }),
  // Its way to be fast: batches, fetched one after the other while they are full.
  async 'pg-boss' (config, client, work = { batchSize: CONCURRENCY, burstWhenBatchFull: true }) {
    const { PgBoss } = require('pg-boss')
    const boss = new PgBoss({ ...config, max: CONCURRENCY + 2, useListenNotify: true })
    boss.on('error', () => {})
    await boss.start()
    return {
      waiting: "SELECT count(*) FROM pgboss.job WHERE state = 'created'",
      setup: () => boss.createQueue('bench', { notify: true }),
      fill: (count, id) => inBatches(count, (numbers) =>
        boss.insert('bench', numbers.map((n) => ({ data: { n }, ...(id && { group: { id } }) })))),
      enqueue: (number, id) => boss.send('bench', { n: number }, id ? { group: { id } } : {}),
      start: (call) => boss.work('bench', work, (jobs) =>
        Promise.all(jobs.map((job) => call(job.data.n)))),
      stop: () => boss.stop({ graceful: true }),
      close: () => boss.stop({ graceful: false })
    }
  },
  'pg-boss, ahead': (config, client) =>
    contenders['pg-boss'](config, client, { batchSize: AHEAD, burstWhenBatchFull: true }),
  'pg-boss, groups': (config, client) =>
    contenders['pg-boss'](config, client, { localConcurrency: CONCURRENCY, groupConcurrency: CONCURRENCY / 2,
        pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5 }),
  async 'bullmq' (config) {
    const { Queue, Worker, createPostgresBackend } = require('bullmq')
    const options = { connection: { ...config, max: CONCURRENCY + 2, migrate: true } }
    const queue = new Queue('bench', options, createPostgresBackend)
    queue.on('error', () => {})
    let worker
    return {
      waiting: "SELECT count(*) FROM bullmq.job WHERE state = 'waiting'",
      setup: () => queue.waitUntilReady(),
      fill: (count) => inBatches(count, (numbers) => queue.addBulk(numbers.map((n) => ({ name: 'bench', data: n })))),
      enqueue: (number) => queue.add('bench', number),
      start: async (call) => {
        worker = new Worker('bench', (job) => call(job.data), { ...options, concurrency: CONCURRENCY },
            createPostgresBackend)
        worker.on('error', () => {})
        await worker.waitUntilReady()
      },
      stop: async () => { await worker.close(); await queue.close() },
      close: () => queue.close()
    }
  },
  async 'absurd' (config, client) {
    const { Absurd } = require('absurd-sdk')
    const app = new Absurd({ db: url(config), queueName: 'bench' })
    let worker
    return {
      waiting: "SELECT count(*) FROM absurd.r_bench WHERE state = 'pending'",
      setup: async () => {
        await client.query(require('fs').readFileSync(process.env.ABSURD_SCHEMA, 'utf8'))
        await app.createQueue('bench')
      },
      fill: (count) => client.query(
        "SELECT absurd.spawn_task('bench', 'bench', to_jsonb(n)) FROM generate_series(1, $1::int) AS n", [count]),
      enqueue: (number) => app.spawn('bench', number, { queue: 'bench' }),
      start: async (call) => {
        app.registerTask({ name: 'bench' }, async (number) => { await call(number) })
        worker = await app.startWorker({ concurrency: CONCURRENCY, onError: () => {} })
      },
      stop: async () => { await worker.close(); await app.close() },
      close: () => app.close()
    }
  }
}

// Starts the worker, and measures how long `count` jobs wait that are enqueued one after the other.
async function waits (contender, count, options = {}) {
  let next
  await contender.start(async (number) => {
    if (number < 0) next.done(performance.now())
    else if (options.busy) await sleep(options.busy)
  })
  await sleep(1000)
  const times = []
  for (let n = 1; n <= count; n++) {
    next = settle()
    const begun = performance.now()
    await contender.enqueue(-n, options.group)
    times.push(await next.promise - begun)
    // Until the worker sleeps again.
    await sleep(50)
  }
  return times
}

const actions = {
  setup: (contender) => contender.setup(),
  waiting: async (contender) => contender.waiting,
  fill: (contender, client, count) => contender.fill(count),
  async drain (contender, client, count) {
    let left = count
    const all = settle()
    const [begun, busy] = [performance.now(), process.cpuUsage()]
    await contender.start(() => { if (--left === 0) all.done() })
    await all.promise
    await contender.stop()
    const { user, system } = process.cpuUsage(busy)
    return { rate: count / (performance.now() - begun) * 1000, cpu: (user + system) / count }
  },
  async latency (contender, client, count) {
    const times = await waits(contender, count)
    await contender.stop()
    times.sort((a, b) => a - b)
    return { p50: times[count >> 1], p95: times[Math.floor(count * 0.95)] }
  },
  // Measures the longest wait of a tenant that sends one job at a time, beside `count` jobs of 20 ms of another one.
  async loud (contender, client, count) {
    await contender.fill(count, 'loud')
    const times = await waits(contender, 5, { busy: 20, group: 'quiet' })
    return Math.max(...times)
  },
  async work (contender, client, ms) {
    process.on('SIGTERM', () => contender.stop().then(() => process.exit()))
    await contender.start(async (number) => { await sleep(ms); console.log(number) })
    await settle().promise
  }
}

async function main (name, what, config, count) {
  const client = new Client(config)
  client.on('error', () => {})
  await client.connect()
  const contender = await contenders[name](config, client)
  const result = await actions[what](contender, client, count)
  const isMeasured = ['number', 'string'].includes(typeof result) || ['drain', 'latency'].includes(what)
  if (isMeasured) console.log(JSON.stringify(result))
  await Promise.race([contender.close?.(), sleep(2000)]).catch(() => {})
}

main(process.argv[2], process.argv[3], JSON.parse(process.argv[4]), Number(process.argv[5])).then(() => process.exit())
