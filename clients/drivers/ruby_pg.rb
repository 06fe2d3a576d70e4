# ruby-pg: the statements of docs/clients.md.
require 'json'
require 'pg'

def is(found, wanted, what)
  raise "#{what}: #{found.inspect} is not #{wanted.inspect}" unless found == wanted
end

DB = PG.connect
ARRAY = PG::TextEncoder::Array.new

def ask(sql, *values)
  DB.exec_params(sql, values).values
end

# JSON is sent as text, an array by an encoder.
job = ask('SELECT queue.enqueue($1, $2, delay => $3)', 'jobs', { n: 1 }.to_json, '0 seconds')[0][0]
is ask('SELECT queue.enqueue_many($1, $2)', 'jobs', ARRAY.encode([{ n: 2 }.to_json, { n: 3 }.to_json])).size, 2, 'enqueue_many'
rows = ask("SELECT id, job_id, payload FROM queue.claim('jobs', 3, wait => $1)", '1 second')
is rows.map { |row| JSON.parse(row[2])['n'] }, [1, 2, 3], 'payloads'
is rows[0][1], job, 'job'
ids = rows.map(&:first)
is ask('SELECT outcome FROM queue.complete_many($1)', ARRAY.encode(ids[0, 1])), [['completed']], 'complete_many'
ask('SELECT queue.fail($1, $2, retry_in => $3)', ids[1], 'no', '1 hour')
ask('SELECT queue.complete($1, $2)', ids[2], { ok: true }.to_json)
begin
  ask('SELECT queue.complete($1)', ids[2])
  raise 'it should be lost'
rescue PG::Error => error
  is error.result.error_field(PG::PG_DIAG_SQLSTATE), 'QJ001', 'lost lease'
end
claim = "SELECT headers ->> 'outcome' FROM queue.claim('jobs', completed => $1) WHERE job_id IS NULL"
is ask(claim, ARRAY.encode(ids[2, 1])), [['lost']], 'the answer for completed'
is ask('SELECT result FROM queue.jobs WHERE job_id = $1', rows[2][1]), [['{"ok": true}']], 'result'

# While a claim waits, other threads run. One of them cancels it.
other = PG.connect
canceller = Thread.new do
  asleep = "SELECT FROM pg_stat_activity WHERE query ~ 'claim.*wait' AND wait_event IS NOT NULL AND state = 'active'
    AND datname = current_database() AND pid <> pg_backend_pid()"
  sleep 0.02 while other.exec(asleep).ntuples.zero?
  DB.cancel
end
begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
begin
  ask("SELECT id FROM queue.claim('jobs', wait => '10 seconds')")
  raise 'it should be cancelled'
rescue PG::QueryCanceled
  is Process.clock_gettime(Process::CLOCK_MONOTONIC) - begun < 8, true, 'the cancel works immediately'
end
canceller.join
