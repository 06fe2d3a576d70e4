'use strict'
// The trace context goes from the producer to the handler. OpenTelemetry has one state a process, so this
// test has a file of its own.

const assert = require('node:assert')
const { test } = require('node:test')
const { SpanKind, context, trace } = require('@opentelemetry/api')
const { AsyncLocalStorageContextManager } = require('@opentelemetry/context-async-hooks')
const { W3CTraceContextPropagator } = require('@opentelemetry/core')
const { propagation } = require('@opentelemetry/api')
const { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } = require('@opentelemetry/sdk-trace-base')
const { Worker, enqueue, enqueueMany } = require('..')
const { database, quiet } = require('./support')

const db = database()

test('a handler runs in a child span of the producer', async () => {
  const none = await enqueue(db.client, 'b')
  assert.equal(await db.one('SELECT headers FROM queue.job($1)', [none]), null)

  const exporter = new InMemorySpanExporter()
  const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] })
  trace.setGlobalTracerProvider(provider)
  propagation.setGlobalPropagator(new W3CTraceContextPropagator())
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable())

  const parent = trace.getTracer('test').startSpan('request')
  const { traceId } = parent.spanContext()
  const [job, bad] = await context.with(trace.setSpan(context.active(), parent), async () => {
    return [await enqueue(db.client, 'a', {}, { headers: { mine: 1 } }),
        await enqueue(db.client, 'a', { bad: true }, { maxAttempts: 1 })]
  })
  parent.end()
  await enqueueMany(db.client, 'b', [1])
  await new Worker(db.config, { logger: quiet }).handle('a', (job) => {
    if (job.payload.bad) throw new Error('no')
    assert.equal(job.headers.mine, 1)
    assert.ok(job.traceparent.includes(traceId))
    return trace.getActiveSpan().spanContext().traceId
  }).handleBatch('b', 10, () => {}).drain()
  assert.equal(await db.one('SELECT result FROM queue.job($1)', [job]), traceId)
  assert.equal(await db.state(bad), 'dead')
  const [span, failed] = exporter.getFinishedSpans().filter((span) => span.name === 'process a')
    .sort((one, other) => one.status.code - other.status.code)
  assert.equal(span.kind, SpanKind.CONSUMER)
  assert.equal(span.attributes['messaging.system'], 'pg_queue')
  assert.equal(span.attributes['messaging.message.id'], String(job))
  assert.equal(failed.status.message, 'no')
  const batch = exporter.getFinishedSpans().find((span) => span.name === 'process b')
  assert.notEqual(batch.spanContext().traceId, traceId)
})
