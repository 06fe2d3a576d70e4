#!/usr/bin/env node
// A worker of queue `greetings`, with node-postgres. Connects as the variables PGHOST, PGDATABASE, … say.

const { setTimeout: sleep } = require('node:timers/promises')
const { Pool } = require('pg')

const CLAIM = `
  SELECT id, job_id, payload,
         greatest(extract(epoch FROM lease_expires_at - clock_timestamp()) / 3, 0.1)::float8 AS beat
  FROM queue.claim('greetings', wait => '5 seconds')`

const pool = new Pool({ max: 2 }) // one for the job, one for its heartbeat
pool.on('error', (error) => console.error(error.message)) // an idle connection has ended: the pool makes another
pool.on('connect', (client) => client.on('error', () => {})) // one in use has ended: its query fails as well

const stopping = new AbortController()
process.on('SIGTERM', () => stopping.abort())
process.on('SIGINT', () => stopping.abort())

// The job itself. A long one heeds `signal`, which says when it should stop.
async function work (payload, signal) {
  await sleep((payload.seconds ?? 0) * 1000, null, { signal })
  if (!payload.name) throw new Error('nobody to greet')
  return `Hello, ${payload.name}!`
}

// What the job writes and its completion: both or neither.
async function finish (job, greeting) {
  const client = await pool.connect()
  try {
    await client.query('BEGIN')
    await client.query('INSERT INTO greeting VALUES ($1, $2)', [job.job_id, greeting])
    await client.query('SELECT queue.complete($1)', [job.id])
    await client.query('COMMIT')
    client.release()
  } catch (error) {
    client.release(error) // closes the connection, which rolls back
    throw error
  }
}

// Does one job and tells the queue how it ended.
async function run (job) {
  const lost = new AbortController()
  const signal = AbortSignal.any([stopping.signal, lost.signal])
  let until = Date.now() + job.beat * 3000
  const heartbeat = setInterval(async () => {
    const begun = Date.now()
    if (begun > until) return lost.abort()
    try {
      const { rows: [{ is_cancelled: isCancelled }] } =
        await pool.query('SELECT is_cancelled FROM queue.extend($1)', [job.id])
      if (isCancelled) lost.abort()
      until = begun + job.beat * 3000
    } catch (error) {
      console.error(error.message)
      if (error.code === 'QJ001') lost.abort() // after any other error there is time to try again
    }
  }, job.beat * 1000)
  try {
    await finish(job, await work(job.payload, signal))
  } catch (error) {
    if (signal.aborted && error.name === 'AbortError') {
      await pool.query('SELECT queue.release($1)', [job.id]) // not counted; cancels a job that is to be cancelled
    } else {
      await pool.query('SELECT queue.fail($1, $2)', [job.id, error.message])
    }
  } finally {
    clearInterval(heartbeat)
  }
}

async function main () {
  while (!stopping.signal.aborted) {
    try {
      const { rows: [job] } = await pool.query(CLAIM)
      if (job) await run(job)
    } catch (error) {
      console.error(error.message)
      // Lost lease: the job is no longer ours, and what we wrote is rolled back. All else may take a while.
      if (error.code !== 'QJ001') await sleep(1000)
    }
  }
  await pool.end()
}

main()
