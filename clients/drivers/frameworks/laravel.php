<?php
// Laravel's database layer: the code of docs/frameworks.md.
require '/usr/share/php/Illuminate/Database/autoload.php';

//@ the page

function is($found, $wanted, string $what): void
{
    if ($found !== $wanted) {
        throw new Exception("$what: " . json_encode($found) . ' is not ' . json_encode($wanted));
    }
}

$container = new Illuminate\Container\Container();
$manager = new Illuminate\Database\Capsule\Manager($container);
$manager->addConnection([
    'driver' => 'pgsql', 'host' => getenv('PGHOST'), 'port' => getenv('PGPORT'), 'database' => getenv('PGDATABASE'),
    'username' => getenv('PGUSER'), 'password' => '', 'charset' => 'utf8',
]);
$container->instance('db', $manager->getDatabaseManager());
Illuminate\Support\Facades\Facade::setFacadeApplication($container);

DB::statement('CREATE TABLE account (email text PRIMARY KEY)');
up();
is(DB::selectOne("SELECT max_attempts FROM queue.queues WHERE queue_name = 'emails'")->max_attempts, 5, 'the migration');
$job = register('ada@example.org');
// The queue is full, so the transaction with the account has to roll back.
DB::statement("SELECT queue.alter('emails', max_waiting => 1)");
try {
    register('grace@example.org');
    throw new Exception('it should be refused');
} catch (Illuminate\Database\QueryException $error) {
    is($error->getCode(), '53400', 'the error');
}
is(DB::table('account')->count(), 1, 'the accounts');
$jobs = DB::select("SELECT job_id, payload FROM queue.jobs WHERE queue_name = 'emails'");
is(count($jobs), 1, 'the jobs');
is([$jobs[0]->job_id, $jobs[0]->payload], [$job, '{"to": "ada@example.org"}'], 'the job');
DB::select('SELECT queue.cancel(?)', [$job]);
down();
is(DB::selectOne("SELECT count(*) FROM queue.queues WHERE queue_name = 'emails'")->count, 0, 'the way back');
