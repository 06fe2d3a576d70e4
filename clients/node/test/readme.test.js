'use strict'
// The code of the pages runs as it stands.

const assert = require('node:assert')
const { execFileSync } = require('node:child_process')
const fs = require('node:fs')
const os = require('node:os')
const path = require('node:path')
const { test } = require('node:test')
const { database } = require('./support')

const db = database()

test('the README', async () => {
  await db.client.query("CREATE TABLE account (name text); CREATE TABLE sent (job_id bigint, recipient text); SELECT queue.create('emails')")
  Object.assign(process.env, { PGHOST: db.config.host, PGDATABASE: db.config.database, PGUSER: 'postgres' })
  const blocks = [...fs.readFileSync(path.join(__dirname, '../README.md'), 'utf8').matchAll(/```js\n(.*?)```/gs)].map(([, code]) => code)
  assert.equal(blocks.length, 4)
  const own = (name) => require(name.replace(/^pg-queue(\/testing)?$/, (_, more) => more ? '../lib/testing' : '..'))
  const AsyncFunction = (async () => {}).constructor
  const code = [...blocks.slice(0, 3), `
    worker.hosts = [{}]
    worker.options.logger = logger
    await until('the delayed job is ready', async () => (await one("SELECT count(*)::int FROM queue.jobs WHERE state = 'ready'")) === 3)
    await worker.drain()
    const counted = { ...counter }`, blocks[3], 'return counted'].join('\n')
  const logger = { debug () {}, info () {}, warn () {}, error () {} }
  const run = new AsyncFunction('require', 'module', 'until', 'one', 'logger', code)
  const counted = await run(own, {}, require('./support').until, db.one, logger)
  assert.deepEqual(counted, { calls: 3, completed: 2, failed: 1 })
  assert.deepEqual(await db.one('SELECT array_agg(recipient ORDER BY recipient) FROM sent'), ['ada@example.org', 'grace@example.org'])
})

test('the tests of docs/testing.md', async () => {
  const page = fs.readFileSync(path.join(__dirname, '../../../docs/testing.md'), 'utf8')
  const [[, code]] = page.matchAll(/```js\n(.*?)```/gs)
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'pg-queue-'))
  try {
    fs.mkdirSync(path.join(folder, 'node_modules'))
    fs.symlinkSync(path.join(__dirname, '..'), path.join(folder, 'node_modules/pg-queue'))
    fs.writeFileSync(path.join(folder, 'page.test.js'), code)
    // It is no part of this run of tests.
    const { NODE_TEST_CONTEXT, ...env } = process.env
    const said = execFileSync(process.execPath, ['page.test.js'], { cwd: folder, env, encoding: 'utf8' })
    assert.match(said, /pass 2$/m)
  } finally {
    fs.rmSync(folder, { recursive: true })
  }
})
