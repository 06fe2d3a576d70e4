CREATE FUNCTION plan_enqueue(lane integer, payload jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE new_id bigint := nextval('attempt_id');
    BEGIN
        INSERT INTO attempt (id, job_id, enqueued_at, lane, priority, attempt, payload)
        VALUES (new_id, new_id, now(), lane, 0, 1, payload);
        RETURN new_id;
    END $$;
CREATE FUNCTION plan_claim(id bigint) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO claim VALUES (id, now(), 300000000, pg_backend_pid(), 'w'); END $$;
CREATE FUNCTION plan_complete(id bigint) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO outcome VALUES (id, now(), 'c'); END $$;
