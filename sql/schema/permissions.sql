-- The privileges of roles on queues.

CREATE TABLE queue_internal.permission (
    queue_id    integer NOT NULL,
    role_name   text    COLLATE "C" NOT NULL,
    privilege   text    COLLATE "C" NOT NULL
                CONSTRAINT permission_privilege_check CHECK (privilege IN ('produce', 'consume', 'observe', 'manage')),
    CONSTRAINT permission_pkey PRIMARY KEY (queue_id, role_name, privilege)
);
COMMENT ON TABLE queue_internal.permission IS
    'The privileges that were granted on queues. Change it only through queue.grant and revoke. It has names, not '
    'oids, so that a dump can be restored where a role is missing.';
COMMENT ON COLUMN queue_internal.permission.queue_id IS '0: every existing and future queue.';
COMMENT ON COLUMN queue_internal.permission.role_name IS
    'The role; its members have the privilege, too. A role that does not exist is ignored. public: all roles.';
COMMENT ON COLUMN queue_internal.permission.privilege IS 'produce, consume, observe, manage.';
SELECT pg_catalog.pg_extension_config_dump('queue_internal.permission', '');

-- For: manage.
CREATE FUNCTION queue.grant(queue_name text, role_name text, privilege text)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_grant';
COMMENT ON FUNCTION queue.grant IS
'Grants a role, and its members, a privilege on a queue; ''*'': on every existing and future queue. privilege: produce
(enqueue), consume (claim and end), observe (read), manage (all of these, and change the queue and its jobs, and
grant). Needs the privilege manage. Errors: 42704 there is no such queue or role, 22023 there is no such privilege,
22004 an argument is null, 42501.';

-- For: manage.
CREATE FUNCTION queue.revoke(queue_name text, role_name text, privilege text)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_revoke';
COMMENT ON FUNCTION queue.revoke IS
'Revokes what queue.grant has granted with the same arguments; does nothing if that was not granted. It takes effect
with the next call of every session. The role need not exist any more. Errors: 42704 there is no such queue, 22023
there is no such privilege, 22004, 42501.';

-- For: observe.
CREATE FUNCTION queue_internal.may_observe(queue_id integer) RETURNS boolean STABLE
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_may_observe';
COMMENT ON FUNCTION queue_internal.may_observe IS
    'Whether the current user may observe a queue; 0: every queue. For the views.';

CREATE VIEW queue_internal.observed WITH (security_barrier) AS
SELECT n.lane, n.stage, q.queue_id, q.queue_name, q.max_attempts, q.stages, n.is_held
FROM queue_internal.lane AS n JOIN queue_internal.queue AS q ON q.queue_id = n.queue_id
WHERE queue_internal.may_observe(q.queue_id);
COMMENT ON VIEW queue_internal.observed IS
    'The lanes of the queues that the current user may observe. For the other views.';
COMMENT ON COLUMN queue_internal.observed.is_held IS 'True for the queue''s lane of held jobs.';

CREATE FUNCTION queue_internal.derive_grants() RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_derive_grants';
COMMENT ON FUNCTION queue_internal.derive_grants IS
'Derives the GRANTs on the extension''s schema, functions and views from queue_internal.permission. Used by upgrade
scripts.';
