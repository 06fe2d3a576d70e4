'use strict'
// Adds jobs, on the caller's own connection and in its transaction: a job exists if and only if the transaction
// commits.
//
// Each parameter is a text, a number or an array of texts, and is cast in SQL. So the statement is the same for any
// driver.

const checks = require('./checks')
const { array, integer, interval, text, time } = checks
const { stringify } = require('./json')
const tracing = require('./tracing')

const headers = (value) => stringify(object(value))

// The options by their names: the argument, its cast in SQL, and what checks and converts a value.
const OPTIONS = {
  // table of options: made by `make generate`
  priority: ['priority', '::integer', integer],
  delay: ['delay', '::text::interval', interval],
  runAt: ['run_at', '::text::timestamptz', time],
  uniqueKey: ['unique_key', '::text', checks.key],
  onDuplicate: ['on_duplicate', '::text', text],
  version: ['version', '::text::timestamptz', time],
  uniqueFor: ['unique_for', '::text::interval', interval],
  groupKey: ['group_key', '::text', checks.key],
  stage: ['stage', '::text', text],
  maxAttempts: ['max_attempts', '::integer', integer],
  lease: ['lease', '::text::interval', interval],
  headers: ['headers', '::text::jsonb', headers],
  after: ['after', '::bigint[]', checks.ids],
  upon: ['upon', '::text', text],
  flow: ['flow', '::bigint', checks.id],
  task: ['task', '::text', text],
  startBy: ['start_by', '::text::timestamptz', time],
  startWithin: ['start_within', '::text::interval', interval],
  maxDelay: ['max_delay', '::text::interval', interval],
  // end of table of options
}

function object (headers) {
  return typeof headers === 'object' && !Array.isArray(headers) ? headers
      : checks.refuse('headers', 'an object', headers)
}

// The options that a function, or a task, does not take.
const WITHOUT = {
  // options that are not taken: made by `make generate`
  publish: ['stage', 'maxAttempts', 'lease'],
  enqueue_flow: ['maxDelay'],
  task: ['after', 'flow', 'maxDelay'],
  // end of options that are not taken
}

// Returns the options that have a value, each with its row of the table.
function * chosen (options, taker) {
  for (const [option, value] of Object.entries({ ...options, headers: tracing.inject(options.headers) })) {
    if (!Object.hasOwn(OPTIONS, option) || WITHOUT[taker]?.includes(option)) {
      throw new TypeError(`there is no option ${option}`)
    }
    if (value !== undefined && value !== null) yield [option, value, OPTIONS[option]]
  }
}

// `arguments_` are the function's arguments besides the options, each a value and its cast.
function call (name, arguments_, options) {
  text(arguments_[0][0], name === 'publish' ? 'topic' : 'queue')
  if (options.codec) throw new TypeError('a statement does not wait for a codec: encode the payload before')
  const values = arguments_.map(([value]) => value)
  const own = arguments_.map(([, before, cast], n) => `${before}$${n + 1}${cast}`).join(', ')
  const { codec, ...given } = options
  let list = ''
  for (const [option, value, [argument, type, convert]] of chosen(given, name)) {
    list += `, ${argument} => $${values.push(convert(value, option))}${type}`
  }
  const columns = name === 'publish' ? 'queue_name AS queue, job_id::float8 AS id' : `${name}::float8 AS id`
  return { text: `SELECT ${columns} FROM queue.${name}(${own}${list})`, values }
}

// Returns a payload as JSON. A value without JSON would become NULL in SQL, and so a job with the payload {}.
function json (payload) {
  checks.warnOfText(payload)
  return stringify(checks.json(payload, 'payload'))
}

// The rest are the payload and the options. A missing payload is {}; a payload of undefined is refused.
function enqueueQuery (queue, ...rest) {
  const [payload, options = {}] = rest.length ? rest : [{}]
  return call('enqueue', [[queue, '', '::text'], [json(payload), '', '::text::jsonb']], options)
}

const enqueueManyQuery = (queue, payloads, options = {}) =>
  call('enqueue_many', [[queue, '', '::text'],
    [array(payloads, 'payloads', 'payloads').map((payload) => json(payload)), '', '::text[]::jsonb[]']], options)

function publishQuery (topic, ...rest) {
  const [payload, { key = '', mandatory = false, ...options } = {}] = rest.length ? rest : [{}]
  return call('publish', [[topic, '', '::text'], [json(payload), '', '::text::jsonb'], [key, '', '::text'],
    [checks.boolean(mandatory ?? false, 'mandatory'), '', '::boolean']], options)
}

// Encodes the payload for a queue or topic. Returns it with the other options. Callers without a codec do not wait for
// it: what they send next, such as a COMMIT, comes after the statement.
async function encoded (name, [payload, { codec, ...options }]) {
  json(payload)
  return [await codec.encode(payload, { kind: 'payload', name }), options]
}

// `tasks` are objects: `task`, its name; `payload`, `queue`, `after` with the names of other tasks, and the options of
// `enqueue`.
function enqueueFlowQuery (queue, flow = {}) {
  if (Array.isArray(flow)) throw new TypeError('give the tasks as { tasks: […] }')
  const { tasks = [], runs = false, open = false, failFast = false, ...options } = flow
  const payload = own(options)
  const members = stringify(array(tasks, 'tasks', 'tasks').map(fields))
  return call('enqueue_flow', [[queue, '', '::text'], [members, '', '::text::jsonb'],
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
  for (const [option, value, [argument, , convert]] of chosen(options, 'task')) {
    found[argument] = option === 'headers' ? object(value) : convert(value, option)
  }
  return found
}

async function enqueue (client, queue, ...rest) {
  checks.client(client)
  const given = rest[1]?.codec ? await encoded(queue, rest) : rest
  return (await client.query(enqueueQuery(queue, ...given))).rows[0].id
}

async function enqueueMany (client, queue, payloads, { codec, ...options } = {}) {
  checks.client(client)
  const one = async (payload) => (await encoded(queue, [payload, { codec }]))[0]
  const given = array(payloads, 'payloads', 'payloads')
  const stored = codec ? await Promise.all(given.map((payload) => one(payload))) : given
  return (await client.query(enqueueManyQuery(queue, stored, options))).rows.map((row) => row.id)
}

async function publish (client, topic, ...rest) {
  checks.client(client)
  const given = rest[1]?.codec ? await encoded(topic, rest) : rest
  return new Map((await client.query(publishQuery(topic, ...given))).rows.map((row) => [row.queue, row.id]))
}

async function enqueueFlow (client, queue, given = {}) {
  checks.client(client)
  let flow = given
  if (given.codec) {
    const { codec, ...rest } = given
    const stored = async (one, name) => ({ ...one, payload: (await encoded(name, [own({ ...one }), { codec }]))[0] })
    const tasks = await Promise.all((rest.tasks ?? []).map((task) => stored(task, task.queue ?? queue)))
    flow = { ...await stored(rest, queue), tasks }
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
