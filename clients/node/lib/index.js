'use strict'
// Producers and workers for pg_queue, the job queue inside PostgreSQL. The types are in index.d.ts.

const { enqueue, enqueueMany, enqueueQuery, enqueueManyQuery } = require('./enqueue')
const { Advance, Fatal, RetryIn, Snooze, Stopped } = require('./outcomes')
const { Worker } = require('./worker')

module.exports = { Advance, Fatal, RetryIn, Snooze, Stopped, Worker, enqueue, enqueueMany, enqueueQuery, enqueueManyQuery }
