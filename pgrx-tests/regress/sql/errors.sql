-- What can go wrong, and how it is said: SQLSTATE, message, detail and hint.

-- Queues ------------------------------------------------------------------------------------------------

SELECT queue.create('mail');
SELECT queue.create('mail');
SELECT queue.create('');
SELECT queue.create(NULL);
SELECT queue.create('other', max_attempts => 0);
SELECT queue.create('other', lease => '-1 s');
SELECT queue.create('other', backoff => 'cubic');
SELECT queue.create('other', backoff_jitter => 2);
SELECT queue.create('other', dead_letter => 'lost');
SELECT queue.create('other', max_running => 0);
SELECT queue.alter('male', lease => '1 min');
SELECT queue.alter('mail', reset => ARRAY['leese']);
SELECT queue.alter('mail', lease => '1 min', reset => ARRAY['lease']);

-- Producers ---------------------------------------------------------------------------------------------

SELECT queue.enqueue('male');
SELECT queue.enqueue('mail', delay => '-1 s');
SELECT queue.enqueue('mail', delay => '1 s', run_at => now());
SELECT queue.enqueue('mail', run_at => 'infinity');
SELECT queue.enqueue('mail', max_attempts => 0);
SELECT queue.enqueue('mail', on_duplicate => 'perhaps');
SELECT queue.enqueue('mail', group_key => 'g');
SELECT queue.enqueue('mail', unique_key => repeat('k', 1025));
SELECT queue.enqueue('mail', unique_for => '1 s');
SELECT queue.enqueue('mail', unique_key => 'k') > 0 AS is_new;
SELECT queue.enqueue('mail', unique_key => 'k', on_duplicate => 'error');
SELECT queue.purge('mail');
SELECT queue.enqueue_many('mail', ARRAY['1', NULL]::jsonb[]);
SELECT queue.enqueue_batch('mail', '{"payload": 1}');
SELECT queue.enqueue_batch('mail', '[{}, 7]');
SELECT queue.enqueue_batch('mail', '[{}, {"pay_load": 1}]');
SELECT queue.enqueue_batch('mail', '[{"priority": "high"}]');
SELECT queue.enqueue_batch('mail', '[{"delay": "soon"}]');
SELECT queue.enqueue_batch('mail', '[{"run_at": "soon"}]');

BEGIN READ ONLY;
SELECT queue.enqueue('mail');
ROLLBACK;

-- Workers -----------------------------------------------------------------------------------------------

SELECT queue.claim('male');
SELECT queue.claim('mail', 0);
SELECT queue.claim('mail', wait => '-1 s');
SELECT queue.claim('mail', lease => '0');
SELECT queue.claim('mail', disconnect => '-1 s');
SELECT queue.claim_any('{}');
SELECT queue.claim_any('{a,b,c,d,e,f,g,h,i}');
BEGIN;
CALL queue.wait('mail');
ROLLBACK;
SELECT queue.complete(NULL);
SELECT queue.complete(0);
SELECT queue.complete_many('{21,0}');
SELECT queue.end_batch(NULL);
SELECT queue.end_batch('{"complete": {"id": 16}}');
SELECT queue.end_batch('[{"complete": {"id": 16}}, {"finish": {"id": 32}}]');
SELECT queue.end_batch('[{"fail": {"id": 16}}]');
SELECT queue.end_batch('[{"complete": {"id": 31}}]');
SELECT * FROM queue.end_batch('[{"complete": {"id": 16000000}}, {"release": {"id": 32, "delay": "-1 s"}},
    {"complete": {"id": 48, "result": "\ud800"}}]');
SELECT queue.fail(16, NULL);
SELECT queue.advance(0);
SELECT queue.create('staged', stages => '{a,b,a}');
SELECT queue.create('lost', dead_letter => 'lost');
SELECT queue.enqueue('mail', stage => 'a');

-- Jobs --------------------------------------------------------------------------------------------------

SELECT queue.cancel(0);
SELECT queue.retry(NULL);
SELECT queue.retry_many(NULL);
SELECT queue.retry_many('{31,0}');
SELECT queue.retry_many('{}', 'infinity');
SELECT queue.reprioritize_many('{31}', NULL);
SELECT queue.search('mail', max_jobs => -1);

-- With ids and times, which change: N and TIME stand for them.

CREATE FUNCTION said(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE code text; message text; detail text; hint text;
BEGIN
    EXECUTE statement;
    RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
        hint = PG_EXCEPTION_HINT;
    RETURN code || regexp_replace(regexp_replace(
        concat(': ', message, E'\nDETAIL: ' || nullif(detail, ''), E'\nHINT: ' || nullif(hint, '')),
        '\d{4}-\d\d-\d\d [0-9:+-]+(\.\d+)?[0-9:+-]+', 'TIME', 'g'), '\m\d{2,}\M', 'N', 'g');
END $$;
SET datestyle = 'ISO';
\pset format unaligned
\pset tuples_only on

SELECT queue.enqueue('mail') AS job \gset
SELECT id AS attempt FROM queue.attempts WHERE job_id = :job \gset
SELECT said(format('SELECT queue.complete(%s)', :job));
SELECT said(format('SELECT queue.cancel(%s)', :attempt));
SELECT said(format('SELECT queue.complete(%s)', :attempt));
SELECT said(format('SELECT queue.complete(%s)', :attempt + 1600000));
SELECT said(format('SELECT queue.cancel(%s)', :job + 1600000));
SELECT said('SELECT queue.drop(''mail'')');

SELECT count(*) FROM queue.claim('mail');
SELECT said(format('SELECT queue.retry(%s)', :job));
SELECT said(format('SELECT queue.reprioritize(%s, 1)', :job));
SELECT said(format('SELECT queue.forget(%s)', :job));

SELECT FROM queue.release(:attempt);
SELECT said(format('SELECT queue.complete(%s)', :attempt));
SELECT id AS attempt FROM queue.claim('mail') \gset
SELECT queue.cancel(:job, force => true);
SELECT said(format('SELECT queue.extend(%s)', :attempt));
SELECT queue.retry(:job);
SELECT id AS attempt FROM queue.claim('mail') \gset
BEGIN;
SELECT queue.complete(:attempt);
SELECT said(format('SELECT queue.fail(%s, ''boom'')', :attempt));
COMMIT;
SELECT said(format('SELECT queue.progress(%s, ''1'')', :attempt));
SELECT said(format('SELECT queue.cancel(%s)', :job));
