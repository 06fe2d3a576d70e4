'use strict'
// The trace context in the headers of jobs, by OpenTelemetry's conventions. Does nothing if OpenTelemetry is not
// installed.

let api = null
try {
  api = require('@opentelemetry/api')
} catch (error) {
  if (error.code !== 'MODULE_NOT_FOUND') throw error
}

// What the provider of spans delegates to while the application has set none.
const NONE = api && new api.ProxyTracerProvider().getDelegate()
// True if the application records no spans and passes no context on.
const isOff = () => !api || (api.trace.getTracerProvider().getDelegate?.() === NONE && !api.propagation.fields().length)

const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value)

// Returns the headers with the current trace context (`traceparent`), unless they have one already, or there is none.
function inject (headers) {
  if (!api || (headers != null && (!isObject(headers) || headers.traceparent))) return headers
  const carrier = {}
  api.propagation.inject(api.context.active(), carrier)
  return Object.keys(carrier).length ? { ...headers, ...carrier } : headers
}

// Calls a handler with a job or a batch, within a span of its own. Its parent is the producer's span; the span of a
// batch has no parent.
function traced (job, call, argument) {
  const headers = isObject(job.headers) && argument === job ? job.headers : {}
  const parent = api.propagation.extract(api.context.active(), headers)
  const attributes = {
    'messaging.system': 'pg_queue',
    'messaging.operation.type': 'process',
    'messaging.operation.name': 'process',
    'messaging.destination.name': job.queue,
    'messaging.message.id': String(job.jobId)
  }
  const options = { kind: api.SpanKind.CONSUMER, attributes }
  return api.trace.getTracer('pg_queue').startActiveSpan(`process ${job.queue}`, options, parent, async (span) => {
    try {
      return await call(argument)
    } catch (error) {
      if (error instanceof Error) span.recordException(error)
      span.setStatus({ code: api.SpanStatusCode.ERROR, message: error?.message })
      throw error
    } finally {
      span.end()
    }
  })
}

module.exports = { inject, isOff, traced }
