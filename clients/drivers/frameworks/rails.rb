# ActiveRecord: the code of docs/frameworks.md.
require 'active_record'
require 'json'

ActiveRecord::Migration.verbose = false
ActiveRecord::Base.establish_connection(adapter: 'postgresql')  # PGHOST, …
CONNECTION = ActiveRecord::Base.connection
CONNECTION.execute('CREATE TABLE accounts (id bigserial PRIMARY KEY, email text UNIQUE)')

class Account < ActiveRecord::Base
end

def is(found, wanted, what)
  raise "#{what}: #{found.inspect} is not #{wanted.inspect}" unless found == wanted
end

#@ the page

migration = AddEmails.new
migration.exec_migration(CONNECTION, :up)
is CONNECTION.select_value("SELECT max_attempts FROM queue.queues WHERE queue_name = 'emails'"), 5, 'the migration'
job = register('ada@example.org')
# The queue is full, so the transaction with the account has to roll back.
CONNECTION.execute("SELECT queue.alter('emails', max_waiting => 1)")
begin
  register('grace@example.org')
  raise 'it should be refused'
rescue ActiveRecord::StatementInvalid
  is CONNECTION.select_values("SELECT job_id FROM queue.jobs WHERE queue_name = 'emails'"), [job], 'the jobs'
  is Account.pluck(:email), ['ada@example.org'], 'the accounts'
end
CONNECTION.execute("SELECT queue.alter('emails', reset => '{max_waiting}')")

# Within a request the query cache is on.
ActiveRecord::Base.cache do
  jobs = Array.new(2) { Jobs.enqueue('emails', { to: 'nobody' }) }
  is jobs.uniq.size, 2, 'two jobs with the same payload'
end

# The worker completes one job, fails two, and ends.
CONNECTION.execute("SELECT queue.alter('emails', max_attempts => 1)")
done = []
work('emails') do |payload|
  done << payload['to']
  Process.kill('TERM', Process.pid) if done.size == 3
  raise 'no address' unless payload['to'].include?('@')

  Account.create!(email: "to #{payload['to']}")
end
is done, %w[ada@example.org nobody nobody], 'the payloads'
is CONNECTION.select_values("SELECT state FROM queue.jobs WHERE queue_name = 'emails' ORDER BY job_id"), %w[completed dead dead], 'the states'
is CONNECTION.select_values("SELECT DISTINCT error FROM queue.jobs WHERE state = 'dead'"), ['no address'], 'the error'
is Account.where(email: 'to ada@example.org').count, 1, 'what the job has written'

migration.exec_migration(CONNECTION, :down)
is CONNECTION.select_value("SELECT count(*) FROM queue.queues WHERE queue_name = 'emails'"), 0, 'the way back'
