<?php
// PDO with its driver pgsql: the statements of docs/clients.md.
error_reporting(E_ALL);
set_error_handler(function ($level, $text) { throw new ErrorException($text); });

function is($found, $wanted, $what) {
    if ($found !== $wanted) {
        throw new Exception("$what: " . var_export($found, true) . ' is not ' . var_export($wanted, true));
    }
}

$place = sprintf('pgsql:host=%s;port=%s;dbname=%s', getenv('PGHOST'), getenv('PGPORT'), getenv('PGDATABASE'));
$db = new PDO($place, getenv('PGUSER'), null, [
    PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION,
    // Behind a pooler in transaction mode each transaction may have another connection, so nothing is prepared.
    PDO::ATTR_EMULATE_PREPARES => (bool) getenv('BEHIND_A_POOLER'),
]);

function ask($sql, ...$values) {
    global $db;
    $statement = $db->prepare($sql);
    $statement->execute($values);
    return $statement->fetchAll(PDO::FETCH_NUM);
}

// PDO has no arrays. They are made from JSON, or written in the syntax of Postgres.
$job = ask('SELECT queue.enqueue(?, ?, delay => ?)', 'jobs', json_encode(['n' => 1]), '0 seconds')[0][0];
$many = 'SELECT queue.enqueue_many(?, ARRAY(SELECT jsonb_array_elements(?)))';
is(count(ask($many, 'jobs', json_encode([['n' => 2], ['n' => 3]]))), 2, 'enqueue_many');
$rows = ask("SELECT id, job_id, payload FROM queue.claim('jobs', 3, wait => ?)", '1 second');
is(array_map(fn($row) => json_decode($row[2])->n, $rows), [1, 2, 3], 'payloads');
is($rows[0][1], $job, 'job');
$ids = array_column($rows, 0);
is(ask('SELECT outcome FROM queue.complete_many(?)', '{' . $ids[0] . '}'), [['completed']], 'complete_many');
ask('SELECT queue.fail(?, ?, retry_in => ?)', $ids[1], 'no', '1 hour');
ask('SELECT queue.complete(?, ?)', $ids[2], '{"ok": true}');
try {
    ask('SELECT queue.complete(?)', $ids[2]);
    throw new Exception('it should be lost');
} catch (PDOException $error) {
    is($error->errorInfo[0], 'QJ001', 'lost lease');
}
$claim = "SELECT headers ->> 'outcome' FROM queue.claim('jobs', completed => ?) WHERE job_id IS NULL";
is(ask($claim, '{' . $ids[2] . '}'), [['lost']], 'the answer for completed');
is(ask('SELECT result FROM queue.jobs WHERE job_id = ?', $rows[2][1])[0][0], '{"ok": true}', 'result');
try {
    ask("SELECT id FROM queue.claim('jobs', wait => '10 seconds')"); // another connection cancels it
    throw new Exception('it should be cancelled');
} catch (PDOException $error) {
    is($error->errorInfo[0], '57014', 'cancelled');
}
