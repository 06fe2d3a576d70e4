#!/bin/bash
# graphile-worker 0.18.0: two jobs with one jobKey in a single call of addJobs are an error, and nothing is added.
#
# A second addJob with the key of a waiting job replaces that job (mode `replace`, the default). One would expect the
# same of two jobs in one call of addJobs: the second replaces the first. But the call is one INSERT ... ON CONFLICT DO
# UPDATE, which may not touch a row twice, so PostgreSQL raises 21000 and the whole batch is lost, with the jobs that
# have no key. A producer that collects jobs has to remove duplicates by itself.
# Seen: two calls leave one job {"n":2}; one call raises 21000 "ON CONFLICT DO UPDATE command cannot affect row a second
# time" and leaves none.
#
# Needs node 22.12 or newer, npm, and the programs of PostgreSQL 15 or younger. Fails if this changes.
set -euo pipefail
. "$(dirname "$0")/postgres.bash"
npm install --silent --no-audit --no-fund --prefix "$dir" node@22.23.3 graphile-worker@0.18.0 pg@8.23.1
cat >"$dir/try.js" <<'JS'
const assert = require('assert');
const { Logger, makeWorkerUtils } = require('graphile-worker');
const { Client } = require('pg');

(async () => {
  const utils = await makeWorkerUtils({ connectionString: process.env.URL, logger: new Logger(() => () => {}) });
  await utils.migrate();
  const client = new Client();
  await client.connect();
  const jobs = async () => (await client.query('SELECT payload FROM graphile_worker._private_jobs ORDER BY id')).rows;
  const job = (n, jobKey) => ({ identifier: 'task', payload: { n }, jobKey });
  const about = require('path').join(process.env.MODULES, 'graphile-worker/package.json');
  console.log('graphile-worker', JSON.parse(require('fs').readFileSync(about)).version);

  await utils.addJob('task', { n: 1 }, { jobKey: 'k' });
  await utils.addJob('task', { n: 2 }, { jobKey: 'k' });
  const two = await jobs();
  console.log('two calls:', JSON.stringify(two));
  assert.deepStrictEqual(two, [{ payload: { n: 2 } }], 'this has changed');

  await client.query('DELETE FROM graphile_worker._private_jobs');
  const code = await utils.addJobs([job(1, 'k'), job(2, 'k'), job(3)]).then(() => null, (error) => {
    console.log('one call:', error.code, error.message);
    return error.code;
  });
  assert.deepStrictEqual([code, await jobs()], ['21000', []], 'this has changed');
  process.exit(0);
})().catch((error) => { console.error(error); process.exit(1); });
JS
MODULES=$dir/node_modules "$dir/node_modules/node/bin/node" "$dir/try.js"
