'use strict'
// The statements of docs/clients.md for each Node driver. All drivers do the same steps.

const assert = require('node:assert')
const fs = require('node:fs')
const path = require('node:path')
const { test } = require('node:test')
const { enqueueQuery } = require('..')
const { database, until } = require('./support')

const db = database()

const SLEEPING = `SELECT count(*)::int FROM pg_stat_activity
  WHERE query ~ 'claim.*wait' AND state = 'active' AND pid <> pg_backend_pid()`
const sleeps = () => until('the claim sleeps', () => db.one(SLEEPING))
const payload = (job) => db.one('SELECT payload FROM queue.job($1)', [job])

test('pg', async () => {
  const pg = await db.server.connect(db.name)
  const ask = async (sql, ...values) => (await pg.query(sql, values)).rows
  const [{ job }] = await ask("SELECT queue.enqueue('a', $1, delay => $2) AS job", { n: 1 }, '0 seconds')
  assert.equal(typeof job, 'string') // int8 comes as a string, unless pg is told otherwise
  // pg would send an array as an array of Postgres, not as JSON. So a payload has to be a string.
  await assert.rejects(ask("SELECT queue.enqueue('a', $1)", [1, 2]), { code: '22P02' })
  const [{ list }] = await ask("SELECT queue.enqueue('a', $1) AS list", JSON.stringify([1, 2]))
  assert.deepEqual(await payload(list), [1, 2])
  assert.equal((await ask("SELECT queue.enqueue_many('a', $1)", [{ n: 2 }, { n: 3 }])).length, 2)
  const rows = await ask("SELECT id, payload FROM queue.claim('a', 4, wait => $1)", '1 second')
  assert.deepEqual(rows.map((row) => row.payload), [{ n: 1 }, [1, 2], { n: 2 }, { n: 3 }])
  const ids = rows.map((row) => row.id)
  assert.deepEqual((await ask('SELECT * FROM queue.complete_many($1)', ids.slice(0, 2))).map((row) => ({ ...row })),
    ids.slice(0, 2).map((id) => ({ id, outcome: 'completed', reason: null })))
  await ask('SELECT queue.fail($1, $2, retry_in => $3)', ids[2], 'no', '1 hour')
  await ask('SELECT queue.complete($1, $2)', ids[3], { ok: true })
  await assert.rejects(ask('SELECT queue.complete($1)', ids[3]), { code: 'QJ001' })
  const answers = await ask("SELECT * FROM queue.claim('a', completed => $1)", [ids[3]])
  assert.deepEqual(answers.map((row) => [row.id, row.job_id, row.headers.outcome]), [[ids[3], null, 'lost']])
  // The error may come before the answer about the cancel.
  const cancelled = assert.rejects(ask("SELECT FROM queue.claim('a', wait => '10 seconds')"), { code: '57014' })
  await sleeps()
  await db.client.query('SELECT pg_cancel_backend($1)', [pg.processID])
  await cancelled
  await pg.end()
})

test('postgres.js', async () => {
  const sql = require('postgres')({ ...db.config, prepare: false, max: 1 })
  const [{ job }] = await sql`SELECT queue.enqueue('a', ${sql.json({ n: 1 })}, delay => ${'0 seconds'}) AS job`
  assert.equal(typeof job, 'string')
  // postgres.js serialises each jsonb parameter itself: it would store the result of JSON.stringify as a string.
  const [{ twice }] = await sql`SELECT queue.enqueue('a', ${JSON.stringify({ n: 1 })}) AS twice`
  assert.equal(await payload(twice), '{"n":1}')
  const [{ text }] = await sql`SELECT queue.enqueue('a', ${JSON.stringify({ n: 2 })}::text::jsonb) AS text`
  assert.deepEqual(await payload(text), { n: 2 })
  const many = [{ n: 3 }, { n: 4 }].map((value) => JSON.stringify(value))
  assert.equal((await sql`SELECT queue.enqueue_many('a', ${many}::text[]::jsonb[])`).length, 2)
  const rows = await sql`SELECT id, payload FROM queue.claim('a', 5, wait => ${'1 second'})`
  assert.deepEqual(rows.map((row) => row.payload.n ?? row.payload), [1, '{"n":1}', 2, 3, 4])
  const ids = rows.map((row) => row.id)
  const ended = await sql`SELECT * FROM queue.complete_many(${ids.slice(0, 3)}::bigint[])`
  assert.deepEqual(ended.map((row) => [row.id, row.outcome]), ids.slice(0, 3).map((id) => [id, 'completed']))
  await sql`SELECT queue.fail(${ids[3]}, ${'no'}, retry_in => ${'1 hour'})`
  await sql`SELECT queue.complete(${ids[4]}, ${sql.json({ ok: true })})`
  await assert.rejects(sql`SELECT queue.complete(${ids[4]})`.execute(), { code: 'QJ001' })
  const answers = await sql`SELECT * FROM queue.claim('a', completed => ${[ids[4]]}::bigint[])`
  assert.deepEqual(answers.map((row) => [row.id, row.job_id, row.headers.outcome]), [[ids[4], null, 'lost']])
  const { text: statement, values } = enqueueQuery('a', { n: 5 }, { delay: 0, headers: { h: 1 } })
  await sql.begin(async (sql) => {
    const [{ id }] = await sql.unsafe(statement, values)
    assert.equal(typeof id, 'number')
  })
  await sql`SELECT queue.purge('a')`
  const claim = sql`SELECT FROM queue.claim('a', wait => '10 seconds')`.execute()
  await sleeps()
  claim.cancel()
  await assert.rejects(claim, { code: '57014' })
  await sql.end()
})

// Functions that the code of docs/clients.md defines.
const text = fs.readFileSync(path.join(__dirname, '../../../docs/clients.md'), 'utf8')
const code = [...text.matchAll(/```js\n(.*?)```/gs)].map(([, block]) => block).join('\n')
const page = new Function('require', `${code}\nreturn { enqueueInKysely, enqueueInDrizzle }`)(
  (name) => require(name === 'pg-queue' ? '..' : name))

// Checks that `enqueue` leaves a job only if its transaction commits.
async function inItsTransaction (enqueue) {
  let undone
  await assert.rejects(enqueue({ n: 1 }, (id) => { undone = id; throw new Error('undone') }), /undone/)
  let job
  await enqueue({ n: 2 }, (id) => { job = id })
  assert.equal((await db.client.query('SELECT FROM queue.job($1)', [undone])).rowCount, 0)
  assert.deepEqual(await payload(job), { n: 2 })
}

test('Kysely', async () => {
  const { CompiledQuery, Kysely, PostgresDialect } = require('kysely')
  const { Pool } = require('pg')
  const kysely = new Kysely({ dialect: new PostgresDialect({ pool: new Pool(db.config) }) })
  await inItsTransaction((payload, then) => kysely.transaction().execute(async (trx) => {
    then(await page.enqueueInKysely(trx, 'a', payload))
  }))
  await assert.rejects(kysely.executeQuery(CompiledQuery.raw('SELECT queue.complete(16)')), { code: 'QJ001' })
  await kysely.destroy()
})

test('Drizzle', async () => {
  const { sql } = require('drizzle-orm')
  const { drizzle } = require('drizzle-orm/node-postgres')
  const { Pool } = require('pg')
  const pool = new Pool(db.config)
  const orm = drizzle(pool)
  await inItsTransaction((payload, then) => orm.transaction(async (tx) => {
    then(await page.enqueueInDrizzle(tx, 'a', payload))
  }))
  // Drizzle wraps the driver's error.
  await assert.rejects(orm.execute(sql`SELECT queue.complete(16)`), (error) => (error.cause ?? error).code === 'QJ001')
  await pool.end()
})
