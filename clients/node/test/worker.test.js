'use strict'
// What producers and workers do, on a server that stays up.

const assert = require('node:assert')
const { test } = require('node:test')
const { setTimeout: sleep } = require('node:timers/promises')
const { Advance, Fatal, RetryIn, Snooze, Worker, enqueue, enqueueMany } = require('..')
const testing = require('../lib/testing')
const { database, quiet, until } = require('./support')

const db = database()
const worker = (options) => new Worker(db.config, { logger: quiet, ...options })
// Its connections have this name.
const named = (name, options) => new Worker({ ...db.config, application_name: name }, { logger: quiet, ...options })

test('a job exists if and only if the transaction commits', async () => {
  const producer = await db.server.connect(db.name)
  await producer.query('BEGIN')
  const job = await enqueue(producer, 'a', { n: 1 })
  await testing.assertEnqueued(producer, 'a', { n: 1 }, { count: 1 })
  await testing.refuteEnqueued(producer, 'a', { n: 2 })
  await testing.refuteEnqueued(db.client, 'a')
  await assert.rejects(testing.assertEnqueued(producer, 'a', { n: 2 }), /0 found. It has: ready {"n":1}/)
  await producer.query('ROLLBACK')
  await producer.end()
  assert.equal((await db.client.query('SELECT FROM queue.job($1)', [job])).rowCount, 0)
})

test('every option arrives', async () => {
  await db.client.query("SELECT queue.create('staged', stages => '{x, y}')")
  const runAt = new Date(Date.now() + 3600000)
  const version = new Date()
  const job = await enqueue(db.client, 'staged', ['any', { json: null }], {
    priority: 70000, runAt, uniqueKey: 'k', onDuplicate: 'replace', version, uniqueFor: '1 minute', groupKey: 'g', stage: 'y',
    maxAttempts: 3, lease: 120000, headers: { h: 1 }
  })
  const { rows: [row] } = await db.client.query('SELECT * FROM queue.job($1)', [job])
  assert.deepEqual([row.payload, row.headers, row.priority, row.run_at, row.stage, row.unique_key, row.group_key, row.max_attempts],
    [['any', { json: null }], { h: 1 }, 70000, runAt, 'y', 'k', 'g', 3])
  assert.equal(await enqueue(db.client, 'staged', {}, { uniqueKey: 'k', version, onDuplicate: 'replace' }), job)
  await assert.rejects(enqueue(db.client, 'staged', {}, { uniqueKey: 'k', onDuplicate: 'error' }), { code: '23505' })
  await db.client.query('SELECT queue.reschedule($1, now())', [job])
  const lease = await db.one("SELECT extract(epoch FROM lease_expires_at - clock_timestamp())::float8 FROM queue.claim('staged')")
  assert.ok(lease > 60 && lease <= 120, lease)
  const delayed = await enqueue(db.client, 'a', {}, { delay: 500 })
  assert.equal(await db.one("SELECT run_at - enqueued_at = '500 ms' AND payload = '{}' FROM queue.job($1)", [delayed]), true)
  await assert.rejects(enqueue(db.client, 'a', {}, { prio: 1 }), /prio/)
  await assert.rejects(enqueue(db.client, 'nope'), { code: '42704' })
  const many = await enqueueMany(db.client, 'a', [{ text: '{"quoted", \\}' }, null, [1]], { priority: 2 })
  const payloads = await Promise.all(many.map((id) => db.one('SELECT payload::text FROM queue.job($1)', [id])))
  assert.deepEqual(payloads.map((text) => JSON.parse(text)), [{ text: '{"quoted", \\}' }, null, [1]])
  assert.deepEqual(await enqueueMany(db.client, 'a', []), [])
})

for (const prefetch of [0, 50]) {
  test(`thousands, each once with its effect, ${prefetch} claimed ahead`, async () => {
    const ids = await enqueueMany(db.client, 'a', Array.from({ length: 2000 }, (_, n) => ({ n })))
    const events = await worker({ concurrency: 8, prefetch }).handle('a', (job) => job.transaction(async (client) => {
      await client.query('INSERT INTO effect VALUES ($1, $2)', [job.jobId, job.attempt])
    })).drain()
    assert.deepEqual(await db.effects(), ids)
    assert.equal(events.filter((event) => event.kind === 'completed').length, 2000)
    assert.equal(await db.one("SELECT count(*)::int FROM queue.jobs WHERE state <> 'completed'"), 0)
  })
}

test('what returns nothing is completed by the claims', async () => {
  const ids = await enqueueMany(db.client, 'a', Array.from({ length: 5000 }, (_, n) => ({ n })))
  const begun = await db.one('SELECT pg_current_xact_id()::text::float8')
  const seen = []
  await worker({ concurrency: 20, prefetch: 100 }).handle('a', (job) => { seen.push(job.jobId) }).drain()
  assert.deepEqual(seen.sort((a, b) => a - b), ids)
  assert.equal(await db.one("SELECT count(*)::int FROM queue.jobs WHERE state = 'completed'"), 5000)
  assert.ok(await db.one('SELECT pg_current_xact_id()::text::float8') - begun < 1000, 'transactions for 5000 jobs')
})

test('how attempts end', async () => {
  await db.client.query("SELECT queue.create('staged', stages => '{x, y}', max_attempts => 1)")
  const circular = {}
  circular.self = circular
  const kinds = {
    result: () => ({ a: 1 }),
    retry: () => { throw new RetryIn('1 hour', 'later') },
    fatal: () => { throw new Fatal('never') },
    snooze: () => { throw new Snooze(3600000) },
    error: () => { throw new TypeError('a\0b\udc80') },
    circular: () => circular,
    refused: () => ({ bad: '\0' })
  }
  const jobs = {}
  for (const kind of Object.keys(kinds)) jobs[kind] = await enqueue(db.client, 'a', { kind }, { maxAttempts: kind === 'retry' ? 20 : 1 })
  const staged = await enqueue(db.client, 'staged')
  const bad = await enqueue(db.client, 'staged', { forgets: true })
  await worker().handle('a', (job) => kinds[job.payload.kind]())
    .handle('staged', (job) => job.stage === 'x' && !job.payload.forgets ? new Advance({ payload: { from: job.stage } }) : undefined)
    .drain()
  const found = {}
  for (const [kind, job] of Object.entries(jobs)) {
    const { rows: [row] } = await db.client.query('SELECT state, result, error FROM queue.job($1)', [job])
    found[kind] = [row.state, row.result ?? row.error]
  }
  assert.deepEqual(found.result, ['completed', { a: 1 }])
  assert.deepEqual(found.retry, ['retrying', 'later'])
  assert.deepEqual(found.fatal, ['dead', 'never'])
  assert.equal(found.snooze[0], 'scheduled')
  assert.deepEqual(found.error, ['dead', 'TypeError: ab\ufffd'])
  assert.match(found.circular[1], /^TypeError: Converting circular structure/)
  assert.match(found.refused[1], /^result cannot be stored as jsonb/)
  assert.deepEqual(await db.one("SELECT payload FROM queue.job($1) WHERE state = 'completed'", [staged]), { from: 'x' })
  assert.match(await db.one('SELECT error FROM queue.job($1)', [bad]), /^stage "x" is not the last of queue/)
})

// All of them end together, in one call. That the server refuses one is its answer; with the odd stage the call is an error, and
// with the odd delay a failure is refused.
test('an end that is refused keeps no other from ending', async () => {
  const ends = {
    result: [{ a: 1 }, ['completed', { a: 1 }, /null/]],
    zero: [{ bad: '\0' }, ['dead', null, /^result cannot be stored as jsonb/]],
    stage: [new Advance({ stage: '\udc80' }), ['dead', null, /^ends\[0\]: /]],
    nowhere: [new Advance({ stage: 'z' }), ['dead', null, /^queue "a" has no stage/]],
    retry: [new RetryIn(-1, 'too late'), ['dead', null, /^too late$/]],
    fatal: [new Fatal('never'), ['dead', null, /^never$/]],
    snooze: [new Snooze(3600000), ['scheduled', null, /null/]]
  }
  const jobs = {}
  for (const kind of Object.keys(ends)) jobs[kind] = await enqueue(db.client, 'a', kind, { maxAttempts: 1 })
  await worker().handleBatch('a', 10, async (batch) => batch.jobs.map((job) => ends[job.payload][0])).drain()
  for (const [kind, [, [state, result, error]]] of Object.entries(ends)) {
    const { rows: [row] } = await db.client.query('SELECT state, result, error FROM queue.job($1)', [jobs[kind]])
    assert.deepEqual([row.state, row.result], [state, result], kind)
    assert.match(String(row.error), error)
  }
})

test('an end is sent again after an error which is not its own', async () => {
  await db.client.query('CREATE ROLE clerk LOGIN')
  await db.client.query("SELECT queue.create('c'), queue.grant('a', 'clerk', 'consume'), queue.grant('c', 'clerk', 'consume')")
  const jobs = [await enqueue(db.client, 'a'), await enqueue(db.client, 'c')]
  const events = []
  let goesOn = false
  const one = new Worker({ ...db.config, user: 'clerk' }, { logger: quiet, heartbeat: 60000 }).handle(['a', 'c'], async () => {
    while (!goesOn) await sleep(5)
    return { a: 1 }
  })
  for (const each of ['completed', 'failed', 'released', 'lost']) one.on(each, (event) => events.push(event.kind))
  await db.running(one, async () => {
    for (const job of jobs) await db.waitState(job, 'running')
    await db.client.query("SELECT queue.revoke('c', 'clerk', 'consume')")
    goesOn = true
    await db.waitState(jobs[0], 'completed')
    await until('it is told', () => events.length)
    assert.equal(await db.state(jobs[1]), 'running')
    await db.client.query("SELECT queue.grant('c', 'clerk', 'consume')")
    await db.waitState(jobs[1], 'completed')
  })
  assert.deepEqual(events, ['completed', 'completed'])
})

test('a completion is lost that goes along with a claim', async () => {
  const job = await enqueue(db.client, 'a')
  const events = []
  let begun = null
  let goesOn = false
  // With one slot the next claim takes along what returns nothing.
  const one = named('lost', { concurrency: 1, heartbeat: 60000 }).handle('a', async (job) => {
    begun = job.id
    while (!goesOn) await sleep(5)
  })
  for (const each of ['completed', 'failed', 'released', 'lost']) one.on(each, (event) => events.push(event.kind))
  await db.running(one, async () => {
    await until('it runs', () => begun)
    await db.client.query('SELECT queue.cancel($1, force => true)', [job])
    goesOn = true
    await until('it has ended', () => events.length)
    const sent = "SELECT count(*)::int FROM pg_stat_activity WHERE application_name = 'lost' AND query ~ 'end_batch'"
    assert.equal(await db.one(sent), 0, 'the claim has told it')
  })
  assert.deepEqual(events, ['lost'])
})

test('an error rolls back what the handler wrote', async () => {
  const job = await enqueue(db.client, 'a')
  const one = worker().handle('a', (job) => job.transaction(async (client) => {
    await client.query('INSERT INTO effect VALUES ($1, $2)', [job.jobId, job.attempt])
    if (job.attempt === 1) throw new Error('once')
    return { attempt: job.attempt }
  }))
  await db.running(one, () => db.waitState(job, 'completed'))
  assert.deepEqual(await db.effects(), [job])
  assert.deepEqual(await db.one('SELECT result FROM queue.job($1)', [job]), { attempt: 2 })
})

test('heartbeats keep a long job', async () => {
  const jobs = await enqueueMany(db.client, 'b', [{}, {}]) // a lease of one second
  await worker({ concurrency: 1, prefetch: 1 }).handle('b', () => sleep(1500)).drain()
  for (const job of jobs) assert.equal(await db.state(job), 'completed')
  assert.equal(await db.one('SELECT max(attempt) FROM queue.attempts'), 1)
})

for (const [force, reason] of [[false, 'cancelled'], [true, 'lost']]) {
  test(`a handler is told when its job is ${reason}`, async () => {
    const told = []
    const events = []
    const one = worker({ heartbeat: 100 }).handle('a', async (job) => {
      await sleep(20000, null, { signal: job.signal }).finally(() => told.push(job.stopReason))
    })
    for (const kind of ['completed', 'failed', 'released', 'lost']) one.on(kind, (event) => events.push(event.kind))
    const job = await enqueue(db.client, 'a')
    await db.running(one, async () => {
      await db.waitState(job, 'running')
      await db.client.query('SELECT queue.cancel($1, force => $2)', [job, force])
      await until('the handler was told', () => told.length)
    })
    assert.deepEqual(told, [reason])
    assert.equal(await db.state(job), 'cancelled')
    assert.deepEqual(events, [force ? 'lost' : 'released'])
  })
}

test('the transaction of a lost lease is rolled back', async () => {
  const job = await enqueue(db.client, 'a')
  const lost = []
  const one = worker().on('lost', (event) => lost.push(event.jobId)).handle('a', (job) => job.transaction(async (client) => {
    await client.query('INSERT INTO effect VALUES ($1, $2)', [job.jobId, job.attempt])
    await until('the lease is lost', async () => await db.state(job.jobId) === 'cancelled')
  }))
  await db.running(one, async () => {
    await db.waitState(job, 'running')
    await db.client.query('SELECT queue.cancel($1, force => true)', [job])
    await until('it is told', () => lost.length)
  })
  assert.deepEqual(await db.effects(), [])
  assert.deepEqual(lost, [job])
})

for (const [kind, event, end] of [
  ['nothing', 'completed', { state: 'completed', result: null, error: null }],
  ['result', 'completed', { state: 'completed', result: { a: 1 }, error: null }],
  ['fatal', 'failed', { state: 'dead', result: null, error: 'never' }],
  ['snooze', 'released', { state: 'scheduled', result: null, error: null }]
]) {
  test(`what an open transaction is in the way of is told again: ${kind}`, async () => {
    const job = await enqueue(db.client, 'a')
    const events = []
    let begun = null
    let goesOn = false
    // With one slot the next claim takes along what returns nothing.
    const one = named(kind, { concurrency: 1 }).handle('a', async (job) => {
      begun = job.id
      while (!goesOn) await sleep(5)
      if (kind === 'fatal') throw new Fatal('never')
      if (kind === 'snooze') throw new Snooze(3600000)
      return kind === 'result' ? { a: 1 } : undefined
    })
    for (const each of ['completed', 'failed', 'released', 'lost']) one.on(each, (event) => events.push(event.kind))
    await db.running(one, async () => {
      await until('it runs', () => begun)
      await db.rollBackLate(kind, begun, () => { goesOn = true })
      await until('it has ended', () => events.length)
    })
    assert.deepEqual(events, [event])
    const { rows: [row] } = await db.client.query('SELECT state, result, error FROM queue.job($1)', [job])
    assert.deepEqual({ ...row }, end)
  })
}

test('a heartbeat leaves alone a handler that has yet to commit', async () => {
  const job = await enqueue(db.client, 'b') // a lease of one second
  let goesOn = false
  const lost = []
  const one = worker({ heartbeat: 100 }).on('lost', (event) => lost.push(event.jobId)).handle('b', (job) => job.transaction(async (client) => {
    await client.query('INSERT INTO effect VALUES ($1, $2)', [job.jobId, job.attempt])
    await job.complete(client)
    while (!goesOn) await sleep(5, null, { signal: job.signal })
  }))
  const late = "SELECT max(clock_timestamp() - claimed_at) > '2.5 seconds' FROM queue.attempts WHERE state = 'running'"
  await db.running(one, async () => {
    await until('the lease would be over', () => db.one(late))
    goesOn = true
    await db.waitState(job, 'completed')
  })
  assert.deepEqual(await db.effects(), [job])
  assert.deepEqual(lost, [])
})

test('progress, middleware, headers', async () => {
  const parent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
  const job = await enqueue(db.client, 'a', {}, { headers: { traceparent: parent } })
  const said = []
  const one = worker()
    .use(async (job, call) => { said.push('outer'); return { outer: await call(job) } })
    .use((job, call) => { said.push('inner'); return call(job) })
    .handle('a', async (job) => {
      said.push(job.progress)
      if (job.attempt === 1) {
        await job.saveProgress({ pages: 12 })
        throw new RetryIn(0)
      }
      return job.traceparent
    })
  await db.running(one, () => db.waitState(job, 'completed'))
  assert.deepEqual(said, ['outer', 'inner', null, 'outer', 'inner', { pages: 12 }])
  assert.deepEqual(await db.one('SELECT result FROM queue.job($1)', [job]), { outer: parent })
})

test('no more run at once than asked', async () => {
  await enqueueMany(db.client, 'a', Array(40).fill({}))
  let now = 0
  let most = 0
  await worker({ concurrency: 3, prefetch: 5 }).handle('a', async () => {
    most = Math.max(most, ++now)
    await sleep(5)
    now--
  }).drain()
  assert.equal(most, 3)
})

test('time passes for what waits', async () => {
  const [soon, late] = [await enqueue(db.client, 'a', {}, { delay: '1 hour' }), await enqueue(db.client, 'a', {}, { delay: '2 hours' })]
  assert.deepEqual(await testing.advanceTime(db.client, '1 hour'), [soon])
  const events = await worker().handle('a', () => {}).drain()
  assert.deepEqual(events.filter((event) => event.kind === 'completed').map((event) => event.jobId), [soon])
  assert.deepEqual(await testing.advanceTime(db.client, '1 hour', 'b'), [])
  assert.deepEqual(await testing.advanceTime(db.client, '1 hour'), [late])
})

test('what cannot work is refused at once', async () => {
  await assert.rejects(worker().serve(), /handler/)
  assert.throws(() => worker({ concurrency: 0 }), RangeError)
  assert.throws(() => worker().handle('a', () => {}).handle('a', () => {}), /has a handler/)
  assert.throws(() => worker().handle([...'abcdefghi'], () => {}), RangeError)
})
