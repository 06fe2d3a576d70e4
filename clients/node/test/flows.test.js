'use strict'
// Jobs after jobs: flows, members, suspended jobs, steps; batches.

const assert = require('node:assert')
const { test } = require('node:test')
const { setTimeout: sleep } = require('node:timers/promises')
const {
  Advance, Fatal, RetryIn, Snooze, Suspend, Worker, enqueue, enqueueFlow, enqueueMany, reject, resolve, seal
} = require('..')
const { database, quiet, until } = require('./support')

const db = database()
const worker = (options) => new Worker(db.config, { logger: quiet, ...options })
const effect = (client, job) => client.query('INSERT INTO effect VALUES ($1, $2)', [job.jobId, job.attempt])
const effects = async () => (await db.client.query({ text: 'SELECT job_id::float8, attempt FROM effect ORDER BY 1, 2', rowMode: 'array' })).rows
const result = (job) => db.one('SELECT result FROM queue.job($1)', [job])

test('flows', async () => {
  const runAt = new Date('2096-10-02T07:06:40Z')
  const tasks = [{ task: 'first', payload: { n: 1 } }, { task: 'second', queue: 'b', after: ['first'], priority: 4, runAt, lease: 60000 }]
  const flow = await enqueueFlow(db.client, 'a', { tasks, payload: { report: 9 }, open: true, delay: 0 })
  await enqueue(db.client, 'a', {}, { flow, task: 'third', after: [] })
  const { rows } = await db.client.query('SELECT queue_name, task, state, priority, run_at FROM queue.jobs ORDER BY job_id')
  assert.deepEqual(rows.map((row) => [row.queue_name, row.task, row.state, row.priority]),
    [['a', null, 'held', 0], ['a', 'first', 'ready', 0], ['b', 'second', 'held', 4], ['a', 'third', 'ready', 0]])
  assert.deepEqual(rows[2].run_at, runAt)
  await seal(db.client, flow)
  assert.equal(await db.state(await enqueue(db.client, 'a', {}, { after: [flow], upon: 'ended' })), 'held')
  const [approved, refused] = [await enqueueFlow(db.client, 'a', { open: true }), await enqueueFlow(db.client, 'a', { open: true })]
  await resolve(db.client, approved, { by: 'ada' })
  await reject(db.client, refused, 'no')
  await db.waitState(approved, 'completed')
  await db.waitState(refused, 'dead')
  await assert.rejects(enqueueFlow(db.client, 'a', { tasks: [{ task: 'x', prio: 1 }] }), /there is no option prio/)
})

test('a job splits itself and waits for its members', async () => {
  const one = worker().handle('a', async (job) => {
    if (job.progress === null) {
      await job.transaction(async (client) => {
        await enqueueMany(client, 'b', [1, 2, 3], { flow: job.jobId })
        await job.suspend(client, { progress: true })
      })
      return
    }
    return (await job.inputs()).filter((input) => input.state === 'completed').reduce((sum, input) => sum + input.result, 0)
  }).handle('b', (job) => job.payload * 2)
  const job = await enqueue(db.client, 'a')
  await db.running(one, () => db.waitState(job, 'completed'))
  assert.equal(await result(job), 12)
})

test('a handler returns that it waits', async () => {
  const other = await enqueue(db.client, 'b', {}, { delay: 200 })
  const events = []
  const one = worker().on('suspended', (event) => events.push(event.jobId)).handle('b', () => {})
    .handle('a', (job) => job.progress ? 'on' : new Suspend({ after: [other], progress: 'waited' }))
  const jobs = [await enqueue(db.client, 'a'), await enqueue(db.client, 'a')]
  await db.running(one, async () => { for (const job of jobs) await db.waitState(job, 'completed') })
  assert.deepEqual(await Promise.all(jobs.map(result)), ['on', 'on'])
  assert.deepEqual(events.sort((a, b) => a - b), jobs)
})

test('a step is done once', async () => {
  const charged = []
  const one = worker().handle('a', async (job) => {
    const receipt = await job.step('charge', async (client) => {
      await effect(client, job)
      if (job.attempt === 1) throw new RetryIn(0) // nothing of it is left
      charged.push(job.attempt)
      return job.payload.free ? undefined : { receipt: 7 }
    })
    if (job.attempt === 2) throw new RetryIn(0)
    return [receipt]
  })
  const [paid, free] = [await enqueue(db.client, 'a'), await enqueue(db.client, 'a', { free: true })]
  await db.running(one, async () => { for (const job of [paid, free]) await db.waitState(job, 'completed') })
  assert.deepEqual([await result(paid), await result(free)], [[{ receipt: 7 }], [null]])
  assert.deepEqual(charged, [2, 2])
  assert.deepEqual(await effects(), [[paid, 2], [free, 2]])
})

test('batches', async () => {
  const ids = await enqueueMany(db.client, 'a', Array.from({ length: 250 }, (_, n) => n))
  const sizes = []
  const events = await worker({ concurrency: 100 }).handleBatch('a', 100, async (batch) => {
    sizes.push(batch.length)
    await batch.transaction(async (client) => { for (const job of batch) await effect(client, job) })
  }).use(() => { throw new Error('batches have none') }).drain()
  assert.deepEqual(events.filter((event) => event.kind === 'completed').map((event) => event.jobId).sort((a, b) => a - b), ids)
  assert.deepEqual(await effects(), ids.map((id) => [id, 1]))
  assert.equal(sizes[0], 100)
  assert.ok(sizes.every((size) => size <= 100))
})

test('each of a batch ends in its own way', async () => {
  await db.client.query("SELECT queue.create('staged', stages => '{x, y}')")
  const circular = {}
  circular.self = circular
  const answers = {
    result: { a: 1 }, none: undefined, fatal: new Fatal('never'), retry: new RetryIn('1 hour', 'later'), snooze: new Snooze(3600000),
    error: new TypeError('odd'), circular
  }
  const jobs = []
  for (const kind of Object.keys(answers)) {
    jobs.push(await enqueue(db.client, 'a', { kind }, { maxAttempts: kind === 'retry' ? 20 : 1 }))
  }
  const staged = await enqueue(db.client, 'staged')
  const [few] = await enqueueMany(db.client, 'b', [1, 2], { maxAttempts: 1 })
  await worker({ concurrency: 20 })
    .handleBatch('a', 20, (batch) => batch.jobs.map((job) => answers[job.payload.kind]))
    .handleBatch('staged', 20, (batch) => batch.jobs.map((job) => job.stage === 'x' ? new Advance() : undefined))
    .handleBatch('b', 20, (batch) => batch.jobs.slice(1)).drain()
  const states = await Promise.all(jobs.map(db.state))
  assert.deepEqual(states, ['completed', 'completed', 'dead', 'retrying', 'scheduled', 'dead', 'dead'])
  assert.equal(await db.state(staged), 'completed')
  assert.match(await db.one('SELECT error FROM queue.job($1)', [few]), /must return/)
})

test('a batch with a lost job is done by none', async () => {
  const ids = await enqueueMany(db.client, 'a', [1, 2, 3])
  const begun = []
  let goesOn = false
  const one = worker().handleBatch('a', 10, (batch) => batch.transaction(async (client) => {
    for (const job of batch) await effect(client, job)
    begun.push(batch.length)
    while (!goesOn) await sleep(5)
  }).then(() => {}))
  await db.running(one, async () => {
    await until('it runs', () => begun.length)
    await db.client.query('SELECT queue.cancel($1, force => true)', [ids[1]])
    goesOn = true
    await db.waitState(ids[0], 'completed')
    await db.waitState(ids[2], 'completed')
  })
  assert.equal(begun[0], 3)
  assert.deepEqual(await effects(), [[ids[0], 1], [ids[2], 1]])
})

test('a batch gives back what is still being rolled back', async () => {
  const ids = await enqueueMany(db.client, 'a', [1, 2, 3])
  let begun = null
  let goesOn = false
  const one = new Worker({ ...db.config, application_name: 'batches' }, { logger: quiet })
  one.handleBatch('a', 10, (batch) => batch.transaction(async (client) => {
    for (const job of batch) await effect(client, job)
    begun ??= batch.jobs[0].id
    while (!goesOn) await sleep(5)
  }).then(() => {}))
  await db.running(one, async () => {
    await until('it runs', () => begun)
    await db.client.query('SELECT queue.cancel($1, force => true)', [ids[1]])
    await db.rollBackLate('batches', begun, () => { goesOn = true })
    await db.waitState(ids[0], 'completed')
    await db.waitState(ids[2], 'completed')
  })
  assert.deepEqual(await effects(), [[ids[0], 1], [ids[2], 1]])
})

test('the signal of a batch is aborted when all of its jobs are to stop', async () => {
  const ids = await enqueueMany(db.client, 'a', [1, 2])
  let batch = null
  const one = worker({ heartbeat: 50 }).handleBatch('a', 10, (found) => {
    batch = found
    return sleep(20000, null, { signal: found.signal })
  })
  await db.running(one, async () => {
    await until('it runs', () => batch)
    await db.client.query('SELECT queue.cancel($1)', [ids[0]])
    await until('one is told', () => batch.jobs[0].stopReason)
    assert.equal(batch.signal.aborted, false)
    await db.client.query('SELECT queue.cancel($1)', [ids[1]])
    for (const id of ids) await db.waitState(id, 'cancelled')
  })
})

test('handlers that throw odd things', async () => {
  const odd = [undefined, null, 7, 'text', Symbol('odd'), Object.create(null), { toString () { throw new Error('no words') } },
    new AggregateError([new Error('one')], 'several'), new Error('x'.repeat(100000)), { code: '42P01' }, new DOMException('gone', 'AbortError')]
  const jobs = []
  for (const n of odd.keys()) jobs.push(await enqueue(db.client, 'a', { n }, { maxAttempts: 1 }))
  await worker().handle('a', (job) => { throw odd[job.payload.n] }).drain()
  const states = await Promise.all(jobs.map(db.state))
  assert.deepEqual(states, odd.map(() => 'dead'))
})
