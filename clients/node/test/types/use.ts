// Compiles if and only if the types say what README.md does.
import { Pool } from 'pg'
import { Advance, Fatal, Job, Worker, enqueue, enqueueMany, enqueueQuery } from '../..'
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

const worker = new Worker(['postgres://db1', { host: 'db2' }], { concurrency: 2, sessionBound: true })
worker.handle<{ to: string }>('emails', async (job: Job<{ to: string }>) => {
  if (job.payload.to === '') throw new Fatal('no address')
  await fetch('https://example.org', { signal: job.signal })
  await job.transaction(async (client) => { await client.query('SELECT 1') })
  return new Advance({ stage: 'sent' })
})
worker.use((job, call) => call(job)).on('completed', (event) => { const ms: number | undefined = event.milliseconds; void ms })
// @ts-expect-error: there is no such event
worker.on('complete', () => {})
void produce, new Server().config().host
