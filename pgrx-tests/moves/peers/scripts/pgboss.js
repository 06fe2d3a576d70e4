// pg-boss: see ../peer.py for the verbs.
const { PgBoss } = require(process.env.PGBOSS || 'pg-boss');
const { database, print, handle, quiet } = require('./common.js');

const POLICIES = {
  plain: 'standard', Plain: 'standard', one: 'singleton', strict: 'key_strict_fifo', single: 'exclusive',
};

async function fill(boss) {
  const send = async (queue, label, options = {}, asked = {}) => {
    await boss.send(queue, { label }, options);
    print({ label, queue, ...asked });
  };
  await boss.createQueue('dead');
  for (const [name, policy] of Object.entries(POLICIES)) {
    await boss.createQueue(name, { policy, retryLimit: 2, ...(name === 'plain' && { deadLetter: 'dead' }) });
  }
  // Running, failed and ended jobs come first, because fetch takes any job that is due.
  const take = async (queue, label, options, asked) => {
    await send(queue, label, options, asked);
    const [job] = await boss.fetch(queue);
    return job.id;
  };
  await take('plain', 'running');
  await boss.complete('plain', await take('plain', 'done'));
  await boss.cancel('plain', await take('plain', 'cancelled'));
  await boss.fail('plain', await take('plain', 'dead', { retryLimit: 0 }, { queue: 'dead' }));
  await boss.fail('plain', await take('plain', 'fail retried'), new Error('first'));
  await take('one', 'one running', { singletonKey: 'k' }, { lock: 'one k' });
  await send('one', 'one behind', { singletonKey: 'k' }, { lock: 'one k' });
  for (const n of [1, 2]) await send('one', `one ${n}`, { singletonKey: 'free' }, { lock: 'one free' });
  for (const n of [1, 2]) await send('one', `one none ${n}`, {}, { lock: 'one none' });
  await boss.fail('strict', await take('strict', 'strict head', { singletonKey: 'broken', retryLimit: 0 }));
  await send('strict', 'strict behind', { singletonKey: 'broken' });
  for (const n of [1, 2]) await send('strict', `strict ${n}`, { singletonKey: 'a' }, { lock: 'strict a' });
  await send('single', 'single', { singletonKey: 's' }, { key: 's' });
  // An id belongs to a queue, so a running job of another queue may have the same one.
  const id = '11111111-1111-4111-8111-111111111111';
  await take('Plain', 'twin running', { id });
  await send('plain', 'twin', { id });
  await send('plain', 'least priority', { priority: -2147483648 });
  await send('plain', 'first');
  await send('plain', 'low', { priority: -5 });
  await send('plain', 'high', { priority: 5 });
  await send('plain', 'late', { startAfter: 3600 }, { delay: 3600 });
  await send('plain', 'fail fresh', { retryLimit: 1 });
  await send('Plain', 'case');
  await boss.flow([
    { ref: 'parent', name: 'plain', data: { label: 'parent' } },
    { ref: 'child', name: 'plain', data: { label: 'child' }, dependsOn: ['parent'] },
  ]);
  print({ label: 'parent', queue: 'plain' });
  print({ label: 'child', queue: 'plain' });
}

async function work(boss, concurrency) {
  for (const queue of ['dead', ...Object.keys(POLICIES)]) {
    const options = { pollingIntervalSeconds: 0.5, localConcurrency: concurrency };
    await boss.work(queue, options, async ([job]) => handle(job.data.label, concurrency, queue));
  }
  await quiet(3500);
}

async function main() {
  const [verb, count] = process.argv.slice(2);
  const boss = new PgBoss({ ...database, supervise: verb === 'work', schedule: false });
  boss.on('error', (error) => console.error(error));
  await boss.start();
  if (verb === 'fill') await fill(boss);
  if (verb === 'late') await boss.send('plain', { label: 'later' });
  if (verb === 'work') await work(boss, Number(count));
  await boss.stop({ graceful: false });
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
