'use strict'
// Adds jobs, on the caller's own connection and in its transaction: a job exists if and only if the transaction
// commits.
//
// Each parameter is a text, a number or an array of texts, and is cast in SQL. So the statement is the same for any
// driver.

const { stringify } = require('./json')
const { interval, time } = require('./outcomes')
const tracing = require('./tracing')

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
  headers: ['headers', '::text::jsonb', stringify],
  after: ['after', '::bigint[]', (ids) => Array.from(ids)],
  upon: ['upon', '::text'],
  flow: ['flow', '::bigint'],
  task: ['task', '::text'],
  mandatory: ['mandatory', '::boolean']
}

// For published jobs, bindings and queues determine these options. `mandatory` exists only there.
const OWN = { publish: ['stage', 'maxAttempts', 'lease'], other: ['mandatory'] }

// `arguments_` are the function's arguments besides the options, each a value and its cast.
function call (name, arguments_, options) {
  if (options.codec) throw new TypeError('a statement does not wait for a codec: encode the payload before')
  const values = arguments_.map(([value]) => value)
  const own = arguments_.map(([, before, cast], n) => `${before}$${n + 1}${cast}`).join(', ')
  const { codec, ...given } = { ...options, headers: tracing.inject(options.headers) }
  let list = ''
  for (const [option, value] of Object.entries(given)) {
    const refused = OWN[name] ?? OWN.other
    if (!Object.hasOwn(OPTIONS, option) || refused.includes(option)) throw new TypeError(`there is no option ${option}`)
    if (value === undefined || value === null) continue
    const [argument, type, convert] = OPTIONS[option]
    list += `, ${argument} => $${values.push(convert ? convert(value) : value)}${type}`
  }
  const columns = name === 'publish' ? 'queue_name AS queue, job_id::float8 AS id' : `${name}::float8 AS id`
  return { text: `SELECT ${columns} FROM queue.${name}(${own}${list})`, values }
}

// Returns a payload as JSON. A value without JSON would become NULL in SQL, and so a job with the payload {}.
function json (payload) {
  const text = stringify(payload)
  if (text === undefined) throw new TypeError(`a payload cannot be ${typeof payload}: leave it out for {}, or use null`)
  return text
}

// The rest are the payload and the options. A missing payload is {}; a payload of undefined is refused.
function enqueueQuery (queue, ...rest) {
  const [payload, options = {}] = rest.length ? rest : [{}]
  return call('enqueue', [[queue, '', '::text'], [json(payload), '', '::text::jsonb']], options)
}

const enqueueManyQuery = (queue, payloads, options = {}) =>
  call('enqueue_many', [[queue, '', '::text'],
    [Array.from(payloads, json), '', '::text[]::jsonb[]']], options)

function publishQuery (topic, ...rest) {
  const [payload, { key = '', ...options } = {}] = rest.length ? rest : [{}]
  return call('publish', [[topic, '', '::text'], [json(payload), '', '::text::jsonb'], [key, '', '::text']], options)
}

// Encodes the payload for a queue or topic. Returns it with the other options. Callers without a codec do not wait for
// it: what they send next, such as a COMMIT, comes after the statement.
async function encoded (name, [payload, { codec, ...options }]) {
  json(payload)
  return [await codec.encode(payload, { kind: 'payload', name }), options]
}

// `tasks` are objects: `task`, its name; `payload`, `queue`, `after` with the names of other tasks, and the options of
// `enqueue`.
function enqueueFlowQuery (queue, { tasks = [], runs = false, open = false, failFast = false, ...options } = {}) {
  const payload = own(options)
  return call('enqueue_flow', [[queue, '', '::text'], [stringify(tasks.map(fields)), '', '::text::jsonb'],
    [json(payload), '', '::text::jsonb'], [runs, 'runs => ', '::boolean'], [open, 'open => ', '::boolean'],
    [failFast, 'fail_fast => ', '::boolean']], options)
}

// Takes the payload out of the options; {} if it is left out.
function own (options) {
  if (!Object.hasOwn(options, 'payload')) return {}
  const { payload } = options
  delete options.payload
  return payload
}

// Returns a task as `queue.enqueue_batch` reads it.
function fields ({ queue, after = [], ...options }) {
  const payload = own(options)
  json(payload)
  const found = { payload, after, ...(queue === undefined ? {} : { queue }) }
  const given = { ...options, headers: tracing.inject(options.headers) }
  for (const [option, value] of Object.entries(given)) {
    if (!Object.hasOwn(OPTIONS, option) || ['flow', 'mandatory'].includes(option)) {
      throw new TypeError(`there is no option ${option}`)
    }
    if (value === undefined || value === null) continue
    const [argument, , convert] = OPTIONS[option]
    found[argument] = convert && option !== 'headers' ? convert(value) : value
  }
  return found
}

async function enqueue (client, queue, ...rest) {
  const given = rest[1]?.codec ? await encoded(queue, rest) : rest
  return (await client.query(enqueueQuery(queue, ...given))).rows[0].id
}

async function enqueueMany (client, queue, payloads, { codec, ...options } = {}) {
  const one = async (payload) => (await encoded(queue, [payload, { codec }]))[0]
  const stored = codec ? await Promise.all(Array.from(payloads, one)) : payloads
  return (await client.query(enqueueManyQuery(queue, stored, options))).rows.map((row) => row.id)
}

async function publish (client, topic, ...rest) {
  const given = rest[1]?.codec ? await encoded(topic, rest) : rest
  return new Map((await client.query(publishQuery(topic, ...given))).rows.map((row) => [row.queue, row.id]))
}

async function enqueueFlow (client, queue, { codec, ...flow } = {}) {
  if (codec) {
    const stored = async (one, name) => ({ ...one, payload: (await encoded(name, [own({ ...one }), { codec }]))[0] })
    const tasks = await Promise.all((flow.tasks ?? []).map((task) => stored(task, task.queue ?? queue)))
    flow = { ...await stored(flow, queue), tasks }
  }
  return (await client.query(enqueueFlowQuery(queue, flow))).rows[0].id
}

// Lets an open flow end when its members have ended.
async function seal (client, flow) { await client.query('SELECT queue.seal($1::bigint)', [flow]) }

// Completes an open flow without members: the event that it stands for has occurred. The result is stored as it is:
// encode it with the codec before.
async function resolve (client, flow, result = null) {
  await client.query('SELECT queue.resolve($1::bigint, $2::text::jsonb)', [flow, stringify(result)])
}

// Ends an open flow without members as dead: the event that it stands for has failed.
async function reject (client, flow, error) {
  await client.query('SELECT queue.reject($1::bigint, $2::text)', [flow, error])
}

module.exports = { enqueue, enqueueMany, enqueueFlow, enqueueQuery, enqueueManyQuery, enqueueFlowQuery, publish,
    publishQuery, reject, resolve, seal }
