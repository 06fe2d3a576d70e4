'use strict'
// One throw-away server with a database for a file of tests. Each test gets new queues in it.
// Tests wait for facts with a deadline (`until`), never for time to pass.

const { after, before, beforeEach } = require('node:test')
const { Server } = require('../lib/testing')

const SCHEMA = `
  SELECT queue.drop(queue_name, force => true) FROM queue.queues;
  SELECT queue.create('a', backoff_base => '100 ms', lease => '30 seconds');
  SELECT queue.create('loop');
  SELECT queue.create('b', backoff_base => '100 ms', lease => '1 second');`

function database () {
  const context = {
    async one (sql, values) {
      const { rows: [row] } = await context.client.query(sql, values)
      return Object.values(row)[0]
    },
    state: (job) => context.one('SELECT state FROM queue.job($1)', [job])
  }
  before(async () => {
    context.server = new Server()
    context.name = await context.server.createDatabase()
    context.config = context.server.config(context.name)
    context.client = await context.server.connect(context.name)
  })
  beforeEach(() => context.client.query(SCHEMA))
  after(async () => {
    await context.client.end()
    context.server.close()
  })
  return context
}

async function until (what, condition, limit = 30000) {
  const end = performance.now() + limit
  for (;;) {
    const found = await condition()
    if (found) return found
    if (performance.now() > end) throw new Error(`not within ${limit} ms: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

const quiet = { debug () {}, info () {}, warn () {}, error () {} }

module.exports = { SCHEMA, database, quiet, until }
