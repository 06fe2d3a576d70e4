'use strict'
// For tests of applications: which jobs were enqueued, letting time pass, and temporary servers.
//
// The functions take a client of pg and read what its transaction sees, even before it commits.

const assert = require('node:assert')
const { execFileSync, spawn } = require('node:child_process')
const fs = require('node:fs')
const path = require('node:path')
const { Client } = require('pg')
const { parse, stringify } = require('./json')
const { interval } = require('./checks')

// Returns the living jobs of the queue whose payload contains this one, the oldest first, as rows of queue.jobs.
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

// Fails unless there are `count` such jobs, or at least one if `count` is not given. Returns them.
async function assertEnqueued (client, queue, payload, { count } = {}) {
  const found = await enqueued(client, queue, payload)
  if (count === undefined ? found.length > 0 : found.length === count) return found
  const others = (await enqueued(client, queue)).slice(0, 10).map((job) => `${job.state} ${stringify(job.payload)}`)
  assert.fail(`queue ${queue} should have ${count ?? 'jobs'} with payload ${stringify(payload)}: ` +
    `${found.length} found. It has: ${others.join(', ') || 'none'}`)
}

// Fails if there is such a job.
const refuteEnqueued = (client, queue, payload) => assertEnqueued(client, queue, payload, { count: 0 })

// Lets time pass for jobs that wait for their time, by moving it earlier by this much. Returns the jobs that became
// due.
async function advanceTime (client, by, queue = null) {
  const { rows } = await client.query(`
    SELECT j.job_id::float8 AS id, j.run_at - $1::text::interval <= clock_timestamp() AS is_due
    FROM queue.jobs AS j, LATERAL (SELECT queue.reschedule(j.job_id, j.run_at - $1::text::interval)) AS r
    WHERE j.state IN ('scheduled', 'retrying') AND j.queue_name = coalesce($2::text, j.queue_name)
    ORDER BY j.job_id`, [interval(by), queue])
  return rows.filter((row) => row.is_due).map((row) => row.id)
}

// Ends the server, and removes its folder, when its program has ended: then nobody has the other end of the pipe.
const WATCH = `trap '' HUP INT TERM; read -r line
"$1/pg_ctl" -D "$2/data" stop --wait --timeout=20 --mode=immediate; rm -rf "$2"`

// A temporary server with pg_queue in a folder of its own. It listens only on a socket in that folder, and ends when
// this process does.
//
// `pgConfig` names the installation; the default is the variable PG_CONFIG, else the PATH. If root starts it, it runs
// as the account `postgres` or `nobody`.
class Server {
  #account = account()
  #count = 0
  #watcher = null

  constructor ({ pgConfig = process.env.PG_CONFIG || 'pg_config', settings = {} } = {}) {
    this.bindir = execFileSync(pgConfig, ['--bindir'], { encoding: 'utf8' }).trim()
    this.dir = fs.mkdtempSync(path.join(hasMemory() ? MEMORY : '/tmp', 'pg_queue-'))
    this.data = path.join(this.dir, 'data')
    this.log = path.join(this.dir, 'log')
    if (this.#account) fs.chownSync(this.dir, this.#account.uid, this.#account.gid)
    this.#watch()
    try {
      this.#call('initdb', '--no-sync', '--auth=trust', '--username=postgres', '--encoding=UTF8', '--locale=C')
      const mine = {
        listen_addresses: '',
        port: 5432, // PGPORT of the environment would count otherwise
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

  // Starts the server and waits until it accepts connections.
  start () { this.#call('pg_ctl', 'start', '--wait', '--silent', `--log=${this.log}`) }

  // Stops the server. Mode `immediate` stops it as a crash does.
  stop (mode = 'fast') { this.#call('pg_ctl', 'stop', '--wait', '--silent', `--mode=${mode}`) }

  // Makes the other server a standby of this one, and starts it.
  baseBackup (standby) {
    standby.stop()
    const file = path.join(standby.data, 'postgresql.conf')
    const kept = fs.readFileSync(file)
    fs.rmSync(standby.data, { recursive: true })
    standby.#call('pg_basebackup', '--write-recovery-conf', '--checkpoint=fast',
        `--dbname=host=${this.dir} port=5432 user=postgres`)
    fs.writeFileSync(file, kept)
    standby.start()
  }

  // Promotes a standby, and waits until it is promoted.
  promote () { this.#call('pg_ctl', 'promote', '--wait', '--silent') }

  // Stops the server and removes its folder.
  close () {
    try {
      if (fs.existsSync(path.join(this.data, 'postmaster.pid'))) this.stop('immediate')
    } catch {} // it has died
    this.#watcher.stdin.end()
    fs.rmSync(this.dir, { recursive: true, force: true })
  }

  // Returns the connection parameters of a database.
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

  #watch () {
    const watch = this.#watcher = spawn('sh', ['-c', WATCH, 'sh', this.bindir, this.dir],
        { cwd: '/', detached: true, stdio: ['pipe', 'ignore', 'ignore'], ...this.#account })
    watch.on('error', () => {})
    watch.unref()
    watch.stdin.unref()
  }

  #call (program, ...args) {
    // The server must not inherit the pipes of this process.
    execFileSync(path.join(this.bindir, program), ['-D', this.data, ...args],
        { cwd: '/', stdio: 'ignore', ...this.#account })
  }
}

// The folder of Linux's in-memory file system.
const MEMORY = '/dev/shm'

// Returns whether it has room for a few servers. Containers may have little of it.
function hasMemory () {
  try {
    fs.accessSync(MEMORY, fs.constants.W_OK)
    const found = fs.statfsSync(MEMORY)
    return found.bavail * found.bsize > 2 * 2 ** 30
  } catch {
    return false
  }
}

// Returns user and group for a server that root starts, because Postgres refuses to run as root.
function account () {
  if (process.geteuid() !== 0) return null
  for (const line of fs.readFileSync('/etc/passwd', 'utf8').split('\n')) {
    const [name, , uid, gid] = line.split(':')
    if (name === 'postgres') return { uid: Number(uid), gid: Number(gid) }
  }
  throw new Error('root has no account `postgres` to run a server as')
}

module.exports = { Server, advanceTime, assertEnqueued, enqueued, refuteEnqueued }
