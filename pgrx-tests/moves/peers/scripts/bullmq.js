// BullMQ on PostgreSQL: see ../peer.py for the verbs.
const { Queue, Worker, FlowProducer, createPostgresBackend } = require('bullmq');
const { Client } = require('pg');
const { database, print, handle, quiet } = require('./common.js');

const options = { connection: { ...database, migrate: true } };
const QUEUES = ['task', 'Task', 'stopped', 'single', 'flow'];
const open = (name) => {
  const queue = new Queue(name, options, createPostgresBackend);
  queue.on('error', () => {});
  return queue;
};

async function fill(queues) {
  const add = async (label, options = {}, asked = {}, queue = 'task') => {
    await queues[queue].add('work', { label }, options);
    print({ label, queue, ...asked });
  };
  // Calls what a worker would call: takes the next job and ends it.
  const worker = new Worker('task', null, options, createPostgresBackend);
  worker.on('error', () => {});
  await worker.waitUntilReady();
  const take = async (label, options) => {
    await add(label, options);
    return worker.getNextJob('token');
  };
  await (await take('done')).moveToCompleted(1, 'token', false);
  await (await take('dead')).moveToFailed(new Error('asked to'), 'token', false);
  await (await take('fail retried', { attempts: 3 })).moveToFailed(new Error('asked to'), 'token', false);
  // Unless the job that waits for its retry is delayed, it is taken first.
  await add('first');
  await add('second');
  await add('priority 2', { priority: 2 });
  await add('priority 1', { priority: 1 });
  await add('last in, first out', { lifo: true });
  await add('late', { delay: 3600000 }, { delay: 3600 });
  await add('own id', { jobId: 'user-7' }, { key: 'user-7' });
  await add('deduplicated', { deduplication: { id: 'd' } }, { key: 'd' });
  // The key is free when its time is over, although its job still waits.
  for (const n of [1, 2]) {
    await add(`throttled ${n}`, { deduplication: { id: 'throttle', ttl: 200 } }, { key: 'throttle' });
    await new Promise((resolve) => setTimeout(resolve, 400));
  }
  await add('long key', { jobId: 'k'.repeat(1100) });
  await add('many attempts', { attempts: 2147483647 });
  await add('fail fresh', { attempts: 2 });
  await add('case', {}, {}, 'Task');
  await queues.stopped.pause();
  await add('paused', {}, {}, 'stopped');
  await queues.single.setGlobalConcurrency(1);
  for (const n of [1, 2, 3]) await add(`single ${n}`, {}, { lock: 'single' }, 'single');
  const flows = new FlowProducer(options, createPostgresBackend);
  await flows.add({
    name: 'work', queueName: 'flow', data: { label: 'parent' },
    children: [{ name: 'work', queueName: 'flow', data: { label: 'child' } }],
  });
  for (const label of ['parent', 'child']) print({ label, queue: 'flow' });
  const template = { name: 'work', data: { label: 'scheduled' } };
  await queues.Task.upsertJobScheduler('tick', { every: 3600000, offset: 1800000 }, template);
  print({ label: 'scheduled', queue: 'Task' });
  await add('running', { lifo: true });
  await worker.getNextJob('token');
}

async function work(concurrency) {
  const workers = QUEUES.map((name) => new Worker(name, (job) => handle(job.data.label, concurrency, name),
    { ...options, concurrency }, createPostgresBackend));
  workers.forEach((worker) => worker.on('error', () => {}));
  await quiet(1500);
}

async function main() {
  const [verb, count] = process.argv.slice(2);
  const queues = Object.fromEntries(QUEUES.map((name) => [name, open(name)]));
  for (const queue of Object.values(queues)) await queue.waitUntilReady();
  if (verb === 'fill') await fill(queues);
  if (verb === 'late') await queues.task.add('work', { label: 'later' });
  if (verb === 'work') await work(Number(count));
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
