// graphile-worker: see ../peer.py for the verbs.
const { Logger, makeWorkerUtils, run } = require('graphile-worker');
const { Client } = require('pg');
const { url, print, handle, quiet } = require('./common.js');

const logger = new Logger(() => () => {});

async function fill(utils, client) {
  const add = async (label, options = {}, asked = {}, task = 'task') => {
    await utils.addJob(task, { label }, options);
    print({ label, queue: task, ...asked });
  };
  const at = (seconds) => new Date(Date.now() + seconds * 1000);
  await add('first');
  await add('low', { priority: 5 });
  await add('high', { priority: -5 });
  await add('late', { runAt: at(3600) }, { delay: 3600 });
  for (const n of [1, 2, 3]) await add(`serial ${n}`, { queueName: 'q' }, { lock: 'q' });
  await add('keyed', { jobKey: 'k' }, { key: 'k' });
  await add('flagged', { flags: ['slow'] });
  await add('case', {}, {}, 'Task');
  await add('old', { runAt: at(-60) });
  await add('fail fresh', { maxAttempts: 2 });
  await add('fail retried', { maxAttempts: 4 });
  // Only a worker reaches these states, so the script writes them as a worker does.
  await add('running');
  await add('serial running', { queueName: 'busy' }, { lock: 'busy' });
  await add('serial behind', { queueName: 'busy' }, { lock: 'busy' });
  await add('dead', { maxAttempts: 1 });
  const where = (label) => `WHERE payload ->> 'label' = '${label}'`;
  const jobs = 'graphile_worker._private_jobs';
  const started = "locked_at = now(), locked_by = 'w', attempts = attempts + 1";
  for (const label of ['running', 'serial running']) {
    await client.query(`UPDATE ${jobs} SET ${started} ${where(label)}`);
  }
  await client.query(`UPDATE graphile_worker._private_job_queues SET locked_at = now(), locked_by = 'w'
    WHERE queue_name = 'busy'`);
  const ids = async (label) =>
    (await client.query(`SELECT id FROM ${jobs} WHERE payload ->> 'label' = $1`, [label])).rows.map((r) => r.id);
  await utils.permanentlyFailJobs(await ids('dead'), 'given up');
  await utils.rescheduleJobs(await ids('fail retried'), { attempts: 1, runAt: at(0) });
  await client.query(`SELECT graphile_worker.add_job('task', '{"label": "nul", "text": "\\u0000"}'::json)`);
  print({ label: 'nul', queue: 'task' });
  await client.query(`SELECT graphile_worker.add_job('task', '{"label": "huge number", "n": 1e200000}'::json)`);
  print({ label: 'huge number', queue: 'task' });
  await client.query(`SELECT graphile_worker.add_job('task', '{"label": "infinite"}'::json, run_at => 'infinity')`);
  print({ label: 'infinite', queue: 'task', delay: 1e9 });
}

async function work(concurrency) {
  const tasks = {};
  for (const name of ['task', 'Task']) tasks[name] = (payload) => handle(payload.label, concurrency, name);
  const options = { connectionString: url, concurrency, pollInterval: 200, logger, noHandleSignals: true };
  const runner = await run({ ...options, taskList: tasks });
  await quiet(900);
  await runner.stop();
}

async function main() {
  const [verb, count] = process.argv.slice(2);
  const client = new Client({ connectionString: url });
  await client.connect();
  const utils = await makeWorkerUtils({ connectionString: url, logger });
  await utils.migrate();
  if (verb === 'fill') await fill(utils, client);
  if (verb === 'late') await utils.addJob('task', { label: 'later' });
  if (verb === 'work') await work(Number(count));
  await utils.release();
  await client.end();
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
