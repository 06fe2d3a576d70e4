'use strict'
// For the tests of applications: what was enqueued, letting time pass, and servers to throw away.
//
// The functions take a client of pg and look at what its transaction sees, also before it commits.

const assert = require('node:assert')
const { execFileSync } = require('node:child_process')
const fs = require('node:fs')
const path = require('node:path')
const { Client } = require('pg')
const { parse, stringify } = require('./json')
const { interval } = require('./outcomes')

// The living jobs of the queue whose payload contains this one, the oldest first, as rows of queue.jobs.
async function enqueued (client, queue, payload) {
  const { rows } = await client.query(`
    SELECT *, job_id::float8 AS job_id, payload::text AS payload, headers::text AS headers, progress::text AS progress,
      result::text AS result FROM queue.jobs
    WHERE queue_name = $1 AND state IN ('ready', 'scheduled', 'retrying', 'held', 'running')
      AND ($2::text IS NULL OR payload @> $2::text::jsonb)
    ORDER BY queue.jobs.job_id`, [queue, payload === undefined ? null : stringify(payload)])
  const json = ['payload', 'headers', 'progress', 'result']
  return rows.map((row) => ({ ...row, ...Object.fromEntries(json.map((name) => [name, parse(row[name])])) }))
}

// Fails unless there are such jobs: `count` of them, or at least one. Returns them.
async function assertEnqueued (client, queue, payload, { count } = {}) {
  const found = await enqueued(client, queue, payload)
  if (count === undefined ? found.length > 0 : found.length === count) return found
  const others = (await enqueued(client, queue)).slice(0, 10).map((job) => `${job.state} ${stringify(job.payload)}`)
  assert.fail(`queue ${queue} should have ${count ?? 'jobs'} with payload ${stringify(payload)}: ` +
    `${found.length} found. It has: ${others.join(', ') || 'none'}`)
}

// Fails if there is such a job.
const refuteEnqueued = (client, queue, payload) => assertEnqueued(client, queue, payload, { count: 0 })

// Lets time pass for jobs that wait for theirs: it comes so much earlier. Returns the jobs that became due.
async function advanceTime (client, by, queue = null) {
  const { rows } = await client.query(`
    SELECT j.job_id::float8 AS id, j.run_at - $1::text::interval <= clock_timestamp() AS is_due
    FROM queue.jobs AS j, LATERAL (SELECT queue.reschedule(j.job_id, j.run_at - $1::text::interval)) AS r
    WHERE j.state IN ('scheduled', 'retrying') AND j.queue_name = coalesce($2::text, j.queue_name)
    ORDER BY j.job_id`, [interval(by), queue])
  return rows.filter((row) => row.is_due).map((row) => row.id)
}

// A throw-away server with pg_queue, in a folder of its own, which listens on a socket there and nowhere else.
//
// `pgConfig` names the installation; without, the variable PG_CONFIG does, or the PATH. Started by root it runs as the
// account `postgres` or `nobody`.
class Server {
  #account = account()
  #count = 0

  constructor ({ pgConfig = process.env.PG_CONFIG || 'pg_config', settings = {} } = {}) {
    this.bindir = execFileSync(pgConfig, ['--bindir'], { encoding: 'utf8' }).trim()
    this.dir = fs.mkdtempSync(path.join(hasMemory() ? MEMORY : '/tmp', 'pg_queue-'))
    this.data = path.join(this.dir, 'data')
    this.log = path.join(this.dir, 'log')
    try {
      if (this.#account) fs.chownSync(this.dir, this.#account.uid, this.#account.gid)
      this.#call('initdb', '--no-sync', '--auth=trust', '--username=postgres', '--encoding=UTF8', '--locale=C')
      const mine = {
        listen_addresses: '',
        unix_socket_directories: this.dir,
        shared_preload_libraries: 'pg_queue',
        max_worker_processes: 50,
        shared_buffers: '16MB',
        fsync: 'off'
      }
      const lines = Object.entries({ ...mine, ...settings }).map(([name, value]) => `${name} = '${value}'\n`)
      fs.appendFileSync(path.join(this.data, 'postgresql.conf'), lines.join(''))
      this.start()
    } catch (error) {
      if (fs.existsSync(this.log)) error.message += `\n${fs.readFileSync(this.log, 'utf8')}`
      fs.rmSync(this.dir, { recursive: true, force: true })
      throw error
    }
  }

  // Starts it and waits until it takes connections.
  start () { this.#call('pg_ctl', 'start', '--wait', '--silent', `--log=${this.log}`) }

  // Stops it; with mode `immediate` as a crash would.
  stop (mode = 'fast') { this.#call('pg_ctl', 'stop', '--wait', '--silent', `--mode=${mode}`) }

  // Makes the other server a standby of this one, and starts it as that.
  baseBackup (standby) {
    standby.stop()
    const file = path.join(standby.data, 'postgresql.conf')
    const kept = fs.readFileSync(file)
    fs.rmSync(standby.data, { recursive: true })
    standby.#call('pg_basebackup', '--write-recovery-conf', '--checkpoint=fast',
        `--dbname=host=${this.dir} user=postgres`)
    fs.writeFileSync(file, kept)
    standby.start()
  }

  // Makes a standby a server of its own, and waits until it is.
  promote () { this.#call('pg_ctl', 'promote', '--wait', '--silent') }

  // Stops it and removes all of it.
  close () {
    if (fs.existsSync(path.join(this.data, 'postmaster.pid'))) this.stop('immediate')
    fs.rmSync(this.dir, { recursive: true, force: true })
  }

  // The connection parameters of a database.
  config (database = 'postgres') {
    return { host: this.dir, port: 5432, user: 'postgres', database }
  }

  async connect (database) {
    const client = new Client(this.config(database))
    client.on('error', () => {})
    await client.connect()
    return client
  }

  // Makes a database with the extension, and returns its name.
  async createDatabase () {
    const name = `test${++this.#count}`
    await this.#query('postgres', `CREATE DATABASE ${name}`)
    await this.#query(name, 'CREATE EXTENSION pg_queue')
    return name
  }

  async dropDatabase (name) { await this.#query('postgres', `DROP DATABASE ${name} WITH (FORCE)`) }

  async #query (database, sql) {
    const client = await this.connect(database)
    await client.query(sql).finally(() => client.end())
  }

  #call (program, ...args) {
    // What a server inherits must not be our pipes.
    execFileSync(path.join(this.bindir, program), ['-D', this.data, ...args],
        { cwd: '/', stdio: 'ignore', ...this.#account })
  }
}

// Where files lie in memory, as Linux has it.
const MEMORY = '/dev/shm'

// Whether there is room for a few servers. Containers may have little of it.
function hasMemory () {
  try {
    const found = fs.statfsSync(MEMORY)
    return found.bavail * found.bsize > 2 * 2 ** 30
  } catch {
    return false
  }
}

// User and group for a server that root starts, which Postgres refuses to be.
function account () {
  if (process.geteuid() !== 0) return null
  for (const line of fs.readFileSync('/etc/passwd', 'utf8').split('\n')) {
    const [name, , uid, gid] = line.split(':')
    if (name === 'postgres') return { uid: Number(uid), gid: Number(gid) }
  }
  throw new Error('root has no account `postgres` to run a server as')
}

module.exports = { Server, advanceTime, assertEnqueued, enqueued, refuteEnqueued }
