'use strict'
// The code of docs/frameworks.md runs without changes, with Express, Knex and TypeORM.

const assert = require('node:assert')
const fs = require('node:fs')
const path = require('node:path')
const { test } = require('node:test')
const { database } = require('./support')

const db = database()
const page = fs.readFileSync(path.join(__dirname, '../../../docs/frameworks.md'), 'utf8')
const own = (name) => require(name === 'pg-queue' ? '..' : name)

// Runs the code blocks of a section together, and returns these names of it.
function code (section, ...names) {
  const [, text] = page.split(new RegExp(`^#+ ${section}\n`, 'm'))
  const blocks = [...text.split(/^#+ /m)[0].matchAll(/```js\n(.*?)```/gs)].map(([, block]) => block)
  return new Function('require', 'exports', `${blocks.join('\n')}\nreturn { ${names.join(', ')} }`)
}

// Creates the queue by a migration, and registers an account. Registers another account while the queue is full: that
// transaction has to roll back with its account. Then reverts the migration.
async function registersOnce (up, register, down) {
  await db.client.query('DROP TABLE IF EXISTS account; CREATE TABLE account (email text PRIMARY KEY)')
  await up()
  assert.equal(await db.one("SELECT max_attempts FROM queue.queues WHERE queue_name = 'emails'"), 5)
  const id = await register('ada@example.org')
  await db.client.query("SELECT queue.alter('emails', max_waiting => 1)")
  await assert.rejects(register('grace@example.org'))
  assert.deepEqual(await db.one('SELECT array_agg(email) FROM account'), ['ada@example.org'])
  assert.deepEqual(await db.one(
      "SELECT array_agg(job_id::float8) FROM queue.jobs WHERE queue_name = 'emails' AND state = 'ready'"), [id])
  await db.client.query('SELECT queue.cancel($1)', [id])
  await down()
  assert.equal(await db.one("SELECT count(*)::int FROM queue.queues WHERE queue_name = 'emails'"), 0)
}

const UP = "SELECT queue.create('emails', max_attempts => 5, if_not_exists => true)"
const DOWN = "SELECT queue.drop('emails', if_exists => true)"

test('Express', async () => {
  Object.assign(process.env, { PGHOST: db.config.host, PGDATABASE: db.config.database, PGUSER: 'postgres',
      NODE_ENV: 'test' })
  const { app, pool } = code('Express', 'app', 'pool')(own)
  const server = app.listen(0)
  try {
    await registersOnce(() => db.client.query(UP), async (email) => {
      const answer = await fetch(`http://localhost:${server.address().port}/accounts`, {
        method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ email })
      })
      assert.equal(answer.status, 201)
      return (await answer.json()).jobId
    }, () => db.client.query(DOWN))
  } finally {
    server.close()
    server.closeAllConnections()
    await pool.end()
  }
})

test('Knex', async () => {
  const migration = {}
  const { registerByKnex } = code('Knex', 'registerByKnex')(own, migration)
  const knex = require('knex')({ client: 'pg', connection: db.config })
  try {
    await registersOnce(() => migration.up(knex), (email) => registerByKnex(knex, email), () => migration.down(knex))
  } finally {
    await knex.destroy()
  }
})

test('TypeORM', async () => {
  const { registerByTypeOrm, Queues1700000000000 } =
      code('TypeORM and NestJS', 'registerByTypeOrm', 'Queues1700000000000')(own)
  const { DataSource } = require('typeorm')
  const { host, user: username, database } = db.config
  const source = new DataSource({ type: 'postgres', host, username, database, migrations: [Queues1700000000000] })
  await source.initialize()
  try {
    await registersOnce(() => source.runMigrations(), (email) => registerByTypeOrm(source, email),
        () => source.undoLastMigration())
  } finally {
    await source.destroy()
  }
})
