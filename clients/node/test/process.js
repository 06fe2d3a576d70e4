'use strict'
// A worker as a process of its own, which tests stop and kill. Arguments: connection and options as JSON.

const { setTimeout: sleep } = require('node:timers/promises')
const { Worker } = require('..')

const worker = new Worker(JSON.parse(process.argv[2]), JSON.parse(process.argv[3]))
worker.handle(['a', 'b'], async (job) => {
  await job.saveProgress('begun')
  await sleep((job.payload.seconds ?? 0) * 1000, null, job.payload.deaf ? {} : { signal: job.signal })
  await job.transaction((client) => client.query('INSERT INTO effect VALUES ($1, $2)', [job.jobId, job.attempt]).then(() => {}))
})
worker.handle('loop', async (job) => {
  await job.saveProgress('begun')
  const end = Date.now() + job.payload.seconds * 1000
  while (Date.now() < end); // in the way of all else
})
worker.run().then(() => process.exit())
