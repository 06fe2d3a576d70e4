'use strict'
// Adds jobs, on the caller's own connection and in its transaction: a job exists if and only if that commits.
//
// Each parameter goes as text, a number or an array of texts, and is cast in SQL: so the statement is the same for any driver.

const { interval } = require('./outcomes')
const tracing = require('./tracing')

const time = (value) => value instanceof Date ? value.toISOString() : value

const OPTIONS = {
  priority: ['priority', '::integer'],
  delay: ['delay', '::text::interval', interval],
  runAt: ['run_at', '::text::timestamptz', time],
  uniqueKey: ['unique_key', '::text'],
  onDuplicate: ['on_duplicate', '::text'],
  version: ['version', '::text::timestamptz', time],
  uniqueFor: ['unique_for', '::text::interval', interval],
  groupKey: ['group_key', '::text'],
  stage: ['stage', '::text'],
  maxAttempts: ['max_attempts', '::integer'],
  lease: ['lease', '::text::interval', interval],
  headers: ['headers', '::text::jsonb', JSON.stringify]
}

function call (name, queue, content, cast, options) {
  const values = [queue, content]
  const given = { ...options, headers: tracing.inject(options.headers) }
  let list = ''
  for (const [option, value] of Object.entries(given)) {
    if (!Object.hasOwn(OPTIONS, option)) throw new TypeError(`there is no option ${option}`)
    if (value === undefined || value === null) continue
    const [argument, type, convert] = OPTIONS[option]
    list += `, ${argument} => $${values.push(convert ? convert(value) : value)}${type}`
  }
  return { text: `SELECT ${name}::float8 AS id FROM queue.${name}($1::text, $2${cast}${list})`, values }
}

const enqueueQuery = (queue, payload = {}, options = {}) =>
  call('enqueue', queue, JSON.stringify(payload), '::text::jsonb', options)

const enqueueManyQuery = (queue, payloads, options = {}) =>
  call('enqueue_many', queue, Array.from(payloads, (payload) => JSON.stringify(payload)), '::text[]::jsonb[]', options)

async function enqueue (client, queue, payload, options) {
  return (await client.query(enqueueQuery(queue, payload, options))).rows[0].id
}

async function enqueueMany (client, queue, payloads, options) {
  return (await client.query(enqueueManyQuery(queue, payloads, options))).rows.map((row) => row.id)
}

module.exports = { enqueue, enqueueMany, enqueueQuery, enqueueManyQuery }
