#!/bin/bash
# pg-boss 12.38.0, policy `stately`: a failure is final while another job of the key waits for its retry.
#
# A queue of the policy `stately` holds one job per state and singletonKey. Job 1 fails and waits for its retry. Job 2
# of the same key may run meanwhile, and it fails, too. It has five retries left. One would expect it to wait for its
# retry like job 1, or to be held back. But the state `retry` of this key is taken, so pg-boss ends job 2 as `failed`
# after its first run. `fail()` answers affected 1, and the job's output is its own error: nothing tells the reason.
# Seen: job 1 is retry 0/5, job 2 is failed 0/5. Without a singletonKey in common job 2 waits for its retry.
#
# Needs node 22.12 or newer, npm, and the programs of PostgreSQL 15 or younger. Fails if this changes.
set -euo pipefail
. "$(dirname "$0")/postgres.bash"
npm install --silent --no-audit --no-fund --prefix "$dir" node@22.23.3 pg-boss@12.38.0 pg@8.23.1
cat >"$dir/try.js" <<'JS'
const { PgBoss } = require('pg-boss');
const { Client } = require('pg');

async function states(boss, queue, keys) {
  await boss.createQueue(queue, { policy: 'stately', retryLimit: 5, retryDelay: 60 });
  for (const [n, singletonKey] of keys.entries()) {
    await boss.send(queue, { n: n + 1 }, { singletonKey });
    const [job] = await boss.fetch(queue);
    await boss.fail(queue, job.id, new Error(`failure of job ${n + 1}`));
  }
  const client = new Client();
  await client.connect();
  const { rows } = await client.query(`SELECT data ->> 'n' AS n, state, retry_count, retry_limit,
    output ->> 'message' AS output FROM pgboss.job WHERE name = $1 ORDER BY 1`, [queue]);
  await client.end();
  return rows.map((row) => `job ${row.n}: ${row.state} ${row.retry_count}/${row.retry_limit}, ${row.output}`);
}

(async () => {
  const boss = new PgBoss({ host: process.env.PGHOST, user: 'postgres', database: 'postgres', supervise: false });
  await boss.start();
  const same = await states(boss, 'same', ['k', 'k']);
  const others = await states(boss, 'others', ['k', 'l']);
  console.log('pg-boss', require('pg-boss/package.json').version);
  console.log('one key:', same, 'two keys:', others);
  const wanted = ['job 1: retry 0/5, failure of job 1', 'job 2: failed 0/5, failure of job 2'];
  require('assert').deepStrictEqual(same, wanted, 'this has changed');
  require('assert').deepStrictEqual(others[1], 'job 2: retry 0/5, failure of job 2', 'this has changed');
  process.exit(0);
})().catch((error) => { console.error(error); process.exit(1); });
JS
"$dir/node_modules/node/bin/node" "$dir/try.js"
