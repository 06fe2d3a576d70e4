'use strict'
// Producers and workers for pg_queue, the job queue inside PostgreSQL. The types are in index.d.ts.

const producers = require('./enqueue')
const { Batch } = require('./batch')
const { AesGcm, UnknownCodec } = require('./codec')
const { parse: parseJson, stringify: stringifyJson } = require('./json')
const { Advance, AlreadyDone, Fatal, RetryIn, Snooze, Stopped, Suspend, Throttle } = require('./outcomes')
const { Worker } = require('./worker')

module.exports = { ...producers, Advance, AesGcm, AlreadyDone, Batch, Fatal, RetryIn, Snooze, Stopped, Suspend,
    Throttle, UnknownCodec, Worker, parseJson, stringifyJson }
