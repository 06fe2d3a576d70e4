// Compiles if and only if the types say what README.md does.
import { Pool } from 'pg'
import {
  Advance, AesGcm, AlreadyDone, Codec, Fatal, Job, Suspend, UnknownCodec, Worker, enqueue, enqueueFlow, enqueueMany,
  enqueueQuery, publish
} from '../..'
import { Server, assertEnqueued } from '../../lib/testing'

async function produce (pool: Pool): Promise<number[]> {
  const id: number = await enqueue(pool, 'emails', { to: 7 }, { delay: '1 hour', uniqueKey: 'k', onDuplicate: 'rerun' })
  const { text, values } = enqueueQuery('emails')
  await pool.query(text, values)
  // @ts-expect-error: there is no such option
  await enqueue(pool, 'emails', {}, { prio: 1 })
  await assertEnqueued(pool, 'emails', { to: 7 }, { count: 1 })
  return [id, ...await enqueueMany(pool, 'emails', [{}], { priority: 1 })]
}

async function events (pool: Pool): Promise<number | undefined> {
  // @ts-expect-error: a binding says it
  await publish(pool, 'orders', {}, { stage: 'x' })
  return (await publish(pool, 'orders', { n: 1 }, { key: 'order.placed', priority: 1, mandatory: true })).get('emails')
}

async function flows (pool: Pool): Promise<void> {
  const flow: number = await enqueueFlow(pool, 'emails', {
    tasks: [{ task: 'a' }, { task: 'b', after: ['a'], priority: 1 }],
    runs: true
  })
  await enqueue(pool, 'emails', {}, { after: [flow], upon: 'ended' })
  // @ts-expect-error: a task is after others by their names
  await enqueueFlow(pool, 'emails', { tasks: [{ task: 'a', after: [1] }] })
}

const vault: Codec = {
  encode: async (value, { kind, name }) => ({ codec: 'vault/1', key: '', data: JSON.stringify([kind, name, value]) }),
  decode (stored, { kind }) {
    if (kind === 'step') throw new UnknownCodec('no vault')
    return stored.data
  }
}

async function encoded (pool: Pool): Promise<void> {
  const codec = new AesGcm({ keys: { k7: new Uint8Array(32) }, current: 'k7', accepts: { lost: ['emails'] } })
  await enqueue(pool, 'emails', { to: 7 }, { codec, priority: 1 })
  await publish(pool, 'orders', {}, { codec: vault, key: 'order.placed' })
  new Worker({}, { codec: vault })
  new Worker({}, { effects: ['postgres://primary', { host: 'standby' }] }).handle('emails', async (job) => {
    const sent: number = await job.transaction(async () => 7).catch((error: AlreadyDone) => error.jobIds[0])
    return sent
  })
  // @ts-expect-error: a statement does not wait for a codec
  enqueueQuery('emails', {}, { codec })
}

const worker = new Worker(['postgres://db1', { host: 'db2' }], { concurrency: 2, disconnect: null })
worker.handle([{ queue: 'orders', stage: 'ship' }, 'invoices'], async () => {})
worker.handle<{ to: string }>('emails', async (job: Job<{ to: string }>) => {
  if (job.payload.to === '') throw new Fatal('no address')
  await fetch('https://example.org', { signal: job.signal })
  await job.transaction(async (client) => { await client.query('SELECT 1') })
  return new Advance({ stage: 'sent' })
})
worker.handleBatch<{ to: string }>('events', 100, async (batch) => {
  await batch.transaction(async (client) => { await client.query('SELECT 1') })
  return batch.jobs.map((job) => job.payload.to === '' ? new Fatal('no address') : new Suspend())
})
worker.use((job, call) => call(job)).on('completed', (event) => {
  const ms: number | undefined = event.milliseconds
  void ms
})
// @ts-expect-error: there is no such event
worker.on('complete', () => {})
void produce, void flows, void encoded, void events, new Server().config().host
