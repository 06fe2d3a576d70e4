'use strict'
// The code of the pages runs without changes.

const assert = require('node:assert')
const { execFileSync } = require('node:child_process')
const fs = require('node:fs')
const os = require('node:os')
const path = require('node:path')
const { test } = require('node:test')
const { Worker } = require('..')
const { database, until } = require('./support')

const db = database()

const README = fs.readFileSync(path.join(__dirname, '../README.md'), 'utf8')
const blocks = (language) => [...README.matchAll(new RegExp(`\`\`\`${language}\\n(.*?)\`\`\``, 'gs'))]
    .map(([, code]) => code)

// Makes a folder in which the package is installed, with these files.
function folderOf (files) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'pg-queue-'))
  fs.mkdirSync(path.join(folder, 'node_modules'))
  fs.symlinkSync(path.join(__dirname, '..'), path.join(folder, 'node_modules/pg-queue'))
  for (const [name, text] of Object.entries(files)) fs.writeFileSync(path.join(folder, name), text)
  return folder
}

test('the README works from an empty database and an empty folder', async () => {
  await db.client.query('CREATE DATABASE as_the_page_has_it')
  const client = await db.server.connect('as_the_page_has_it')
  const one = async (sql) => Object.values((await client.query(sql)).rows[0])[0]
  const [setup] = blocks('sql')
  await client.query(setup)
  const [producer, worker, watch, tests, ...more] = blocks('js')
  assert.deepEqual(more, [])
  // The test's own lines stand before the line that runs the worker.
  const line = 'if (require.main === module)'
  const parts = worker.split(line)
  assert.equal(parts.length, 2)
  const files = { 'enqueue.js': producer,
      'worker.js': `${parts[0]}${watch}module.exports.counter = counter\n${line}${parts[1]}`, 'mail.test.js': tests }
  const folder = folderOf(files)
  // Without this variable the child reports its tests to its own stdout.
  const { NODE_TEST_CONTEXT, ...rest } = process.env
  const env = { ...rest, PGHOST: db.config.host, PGDATABASE: 'as_the_page_has_it', PGUSER: 'postgres' }
  const run = (...args) => execFileSync(process.execPath, args, { cwd: folder, env, encoding: 'utf8' })
  try {
    run('enqueue.js')
    await until('the delayed job is ready', async () =>
        (await one("SELECT count(*)::int FROM queue.jobs WHERE state = 'ready'")) === 3)
    const drain = "const { worker, counter } = require('./worker'); worker.options.logger.warn = () => {}; " +
        "worker.drain().then(() => console.log(JSON.stringify(counter)))"
    assert.deepEqual(JSON.parse(run('-e', drain)), { calls: 3, completed: 2, failed: 1 })
    assert.deepEqual(await one('SELECT array_agg(recipient ORDER BY recipient) FROM sent'),
        ['ada@example.org', 'grace@example.org'])
    assert.match(run('mail.test.js'), /pass 1$/m)
  } finally {
    fs.rmSync(folder, { recursive: true })
    await client.end()
  }
})

test('the options of a worker are in its table', () => {
  const [, table] = /\| `new Worker\(connection, \{ … \}\)` \|(.*?)\n\n/s.exec(README)
  const named = [...table.matchAll(/^\| `(\w+)` \|/gm)].map(([, name]) => name)
  assert.throws(() => new Worker({}, { none: 1 }), (error) => {
    const known = /it has (.*)$/.exec(error.message)[1].split(', ')
    assert.deepEqual(named.toSorted?.() ?? [...named].sort(), [...known].sort())
    return true
  })
})

test('the code of docs/encryption.md works', async () => {
  const page = fs.readFileSync(path.join(__dirname, '../../../docs/encryption.md'), 'utf8')
  const [[, code], ...more] = page.matchAll(/```js\n(.*?)```/gs)
  assert.deepEqual(more, [])
  const folder = folderOf({ 'page.js': code })
  process.env.QUEUE_KEY = Buffer.alloc(32).toString('base64')
  try {
    await db.client.query("SELECT queue.create('emails')")
    const { codec, register, worker } = require(path.join(folder, 'page.js'))
    const job = await register(db.client, 'ada@example.org')
    worker.hosts = [db.config]
    await worker.drain()
    const { rows: [row] } = await db.client.query('SELECT payload, result FROM queue.job($1)', [job])
    assert.deepEqual(Object.keys(row.payload).sort(), ['codec', 'data', 'key'])
    assert.deepEqual(codec.decode(row.result, { kind: 'result', name: 'emails' }), { sent: 'ada@example.org' })
  } finally {
    fs.rmSync(folder, { recursive: true })
  }
})

test('the tests of docs/testing.md pass', async () => {
  const page = fs.readFileSync(path.join(__dirname, '../../../docs/testing.md'), 'utf8')
  const [[, code]] = page.matchAll(/```js\n(.*?)```/gs)
  const folder = folderOf({ 'page.test.js': code })
  try {
    // Without this variable the child reports its tests to its own stdout.
    const { NODE_TEST_CONTEXT, ...env } = process.env
    const said = execFileSync(process.execPath, ['page.test.js'], { cwd: folder, env, encoding: 'utf8' })
    assert.match(said, /pass 2$/m)
  } finally {
    fs.rmSync(folder, { recursive: true })
  }
})
