# DBD::Pg: the statements of docs/clients.md.
use strict;
use warnings;
use DBI;
use DBD::Pg qw(:async);
use Time::HiRes qw(time sleep);

sub is {
    my ($found, $wanted, $what) = @_;
    die "$what: '" . ($found // 'undef') . "' is not '$wanted'\n" unless defined $found && $found eq $wanted;
}

# Behind a pooler in transaction mode each transaction may have another connection, so nothing is prepared.
my $db = DBI->connect('dbi:Pg:', undef, undef, { pg_server_prepare => !$ENV{BEHIND_A_POOLER}, RaiseError => 1, PrintError => 0, PrintWarn => 0, AutoCommit => 1 });

# JSON is sent as text, a list as an array.
my ($job) = $db->selectrow_array('SELECT queue.enqueue(?, ?, delay => ?)', undef, 'jobs', '{"n": 1}', '0 seconds');
my $many = $db->selectcol_arrayref('SELECT queue.enqueue_many(?, ?)', undef, 'jobs', ['{"n": 2}', '{"n": 3}']);
is(scalar @$many, 2, 'enqueue_many');
my $rows = $db->selectall_arrayref(q{SELECT id, job_id, payload ->> 'n' FROM queue.claim('jobs', 3, wait => ?)}, undef, '1 second');
is(join(' ', map { $_->[2] } @$rows), '1 2 3', 'payloads');
is($rows->[0][1], $job, 'job');
my @ids = map { $_->[0] } @$rows;
is($db->selectrow_array('SELECT outcome FROM queue.complete_many(?)', undef, [$ids[0]]), 'completed', 'complete_many');
$db->do('SELECT queue.fail(?, ?, retry_in => ?)', undef, $ids[1], 'no', '1 hour');
$db->do('SELECT queue.complete(?, ?)', undef, $ids[2], '{"ok": true}');
eval { $db->do('SELECT queue.complete(?)', undef, $ids[2]) };
is($db->state, 'QJ001', 'lost lease');

my $next = q{SELECT headers ->> 'outcome' FROM queue.claim('jobs', completed => ?) WHERE job_id IS NULL};
is($db->selectrow_array($next, undef, [$ids[2]]), 'lost', 'the answer for completed');
is($db->selectrow_array('SELECT result FROM queue.jobs WHERE job_id = ?', undef, $rows->[2][1]), '{"ok": true}', 'result');

# An asynchronous claim can be cancelled while it waits.
my $claim = $db->prepare(q{SELECT id FROM queue.claim('jobs', wait => '10 seconds')}, { pg_async => PG_ASYNC });
$claim->execute;
my $other = $db->clone;
my $asleep = q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'claim.*wait' AND wait_event IS NOT NULL AND state = 'active'
    AND datname = current_database() AND pid <> pg_backend_pid()};
my $end = time + 20;
until ($other->selectrow_array($asleep)) { die "it does not sleep\n" if time > $end; sleep 0.02 }
my $begun = time;
$db->pg_cancel;
die "it was not cancelled\n" if time - $begun > 5;
is($db->selectrow_array('SELECT 1'), 1, 'the connection goes on');
