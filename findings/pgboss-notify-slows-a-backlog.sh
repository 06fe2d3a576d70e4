#!/bin/bash
# pg-boss 12.38.0, `useListenNotify`: a worker takes waiting jobs more slowly than without it.
#
# The option is there for short waits: NOTIFY wakes a worker when a job is sent. One would expect it to add wake-ups to
# the polls. But while the process listens, each worker polls every `notifyPollingIntervalSeconds` (30) and no longer
# every `pollingIntervalSeconds` (2), and jobs that wait already send no NOTIFY. So a backlog drains at one batch in 30
# seconds and worker, until a new job happens to come. `burstWhenBatchFull` helps for batches of two or more only.
#
# Seen: polling ran 7 of 20 waiting jobs in 13 s, and listening 1 or 2.
#
# Needs node 22.12 or newer, npm, and the programs of PostgreSQL 15 or younger. Fails if this changes.
set -euo pipefail
. "$(dirname "$0")/postgres.bash"
npm install --silent --no-audit --no-fund --prefix "$dir" node@22.23.3 pg-boss@12.38.0 pg@8.23.1
cat >"$dir/try.js" <<'JS'
const { PgBoss } = require('pg-boss');

async function ranIn13Seconds(schema, options) {
  const boss = new PgBoss({ host: process.env.PGHOST, user: 'postgres', database: 'postgres', schema, ...options });
  await boss.start();
  await boss.createQueue('q', { notify: true });
  await boss.insert('q', Array.from({ length: 20 }, (_, n) => ({ data: { n } })));
  let ran = 0;
  await boss.work('q', async () => { ran++; });
  await new Promise((resolve) => setTimeout(resolve, 13000));
  return ran;
}

(async () => {
  const [polling, listening] = await Promise.all([
    ranIn13Seconds('polls', {}), ranIn13Seconds('listens', { useListenNotify: true })]);
  console.log('pg-boss', require('pg-boss/package.json').version);
  console.log(`of 20 waiting jobs ran in 13 s: polling ${polling}, listening ${listening}`);
  require('assert')(polling >= 4 && listening <= 2, 'this has changed');
  process.exit(0);
})().catch((error) => { console.error(error); process.exit(1); });
JS
"$dir/node_modules/node/bin/node" "$dir/try.js"
