'use strict'
// One throw-away server for a file of tests, and a database whose queues and tables are made anew for each.
// Tests wait for facts with a deadline (`until`), never for time to pass.

const { after, before, beforeEach } = require('node:test')
const { Server } = require('../lib/testing')

const SCHEMA = `
  SELECT queue.drop(queue_name, force => true) FROM queue.queues;
  DROP TABLE IF EXISTS effect;
  CREATE TABLE effect (job_id bigint NOT NULL, attempt int NOT NULL);
  SELECT queue.create('a', backoff_base => '100 ms', lease => '30 seconds');
  SELECT queue.create('loop');
  SELECT queue.create('b', backoff_base => '100 ms', lease => '1 second');`

function database () {
  const context = {
    async again () {
      context.client = await until('the server takes connections', () => context.server.connect(context.name).catch(() => null))
    },
    async one (sql, values) {
      const { rows: [row] } = await context.client.query(sql, values)
      return Object.values(row)[0]
    },
    state: (job) => context.one('SELECT state FROM queue.job($1)', [job]),
    waitState: (job, state) => until(`job ${job} is ${state}`, async () => await context.state(job) === state),
    effects: async () => (await context.client.query('SELECT job_id::float8 AS id FROM effect ORDER BY 1')).rows.map((row) => row.id),
    // Ends the attempt in a transaction, and rolls that back once the server has refused what the worker has told it since.
    // The worker's connections have this name; its handler waits for `go`.
    async rollBackLate (name, attempt, go) {
      const refused = `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'
        AND application_name = $1 AND query ~ 'queue.end_batch'`
      const other = await context.server.connect(context.name)
      await other.query('BEGIN')
      await other.query('SELECT queue.complete($1)', [attempt])
      go()
      await until('the server has been told, and has refused it', () => context.one(refused, [name]))
      await other.query('ROLLBACK')
      await other.end()
    },
    async running (worker, work) {
      const served = worker.serve()
      try {
        await Promise.race([work(), served.then(() => { throw new Error('the worker has ended') })])
      } finally {
        worker.stop()
        await served
      }
    }
  }
  before(async () => {
    context.server = new Server()
    context.name = await context.server.createDatabase()
    context.config = context.server.config(context.name)
    await context.again()
  })
  beforeEach(() => context.client.query(SCHEMA))
  after(async () => {
    await context.client.end()
    context.server.close()
  })
  return context
}

async function until (what, condition, limit = 30000) {
  const end = Date.now() + limit
  for (;;) {
    const found = await condition()
    if (found) return found
    if (Date.now() > end) throw new Error(`not within ${limit} ms: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

const quiet = { debug () {}, info () {}, warn () {}, error () {} }

module.exports = { SCHEMA, database, quiet, until }
