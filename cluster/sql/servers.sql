-- The servers, and which of them owns which slot of keys.
--
-- CREATE EXTENSION sets this anyway. It is repeated for readers and checkers of this script.
SET LOCAL search_path TO pg_catalog, pg_temp;

-- What is there and not of this extension is never used.
DO $$
DECLARE
    other record;
BEGIN
    SELECT n.nspname AS name, pg_get_userbyid(n.nspowner) AS owner INTO other
    FROM pg_catalog.pg_namespace AS n WHERE n.nspname IN ('queue_cluster') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'schema "%" exists already', other.name USING ERRCODE = '42P06',
            DETAIL = pg_catalog.format('It belongs to role "%s", and pg_queue_cluster needs the name.', other.owner),
            HINT = pg_catalog.format('Rename it: ALTER SCHEMA %I RENAME TO …. Drop it if nothing in it is needed.',
                                     other.name);
    END IF;
END
$$;

-- A plain CREATE SCHEMA makes the schema a member of the extension.
CREATE SCHEMA queue_cluster;
COMMENT ON SCHEMA queue_cluster IS 'One queue over many servers: the functions of schema queue, for all of them.';

-- Every server has a copy of both tables. Each row has a version, and the copy with the larger version is right. So
-- copies can be sent to any server in any order, and repeatedly. Invariant: a slot changes its owner by a commit on the
-- owner itself, before any other server learns of it. So two servers never both believe that they own it.

CREATE TABLE queue_cluster.server (
    node_id integer PRIMARY KEY CHECK (node_id BETWEEN 0 AND 127),
    name    text NOT NULL UNIQUE CHECK (name <> ''),
    conninfo text NOT NULL,
    state   text NOT NULL DEFAULT 'up' CHECK (state IN ('up', 'draining', 'down', 'removed')),
    identity uuid NOT NULL,
    version bigint NOT NULL DEFAULT 1
);
COMMENT ON TABLE queue_cluster.server IS
    'The servers. Change it through add_server, drain, mark_down, mark_up and remove_server only.';
COMMENT ON COLUMN queue_cluster.server.node_id IS
    'The server''s pg_queue.node_id. All ids that the server makes contain it.';
COMMENT ON COLUMN queue_cluster.server.name IS 'The server''s name.';
COMMENT ON COLUMN queue_cluster.server.conninfo IS
    'How the other servers connect to it, without a user: they connect as the calling role. '
    'All roles can read this, so it must not contain a password.';
COMMENT ON COLUMN queue_cluster.server.state IS
    'up; draining: it gets no more slots, and gives away its own; down: the others do not call it; removed.';
COMMENT ON COLUMN queue_cluster.server.identity IS
    'Its queue_cluster.identity(). It shows a server that it has the number of another one.';
COMMENT ON COLUMN queue_cluster.server.version IS 'The copy of a row with the larger version counts.';

CREATE TABLE queue_cluster.slot (
    slot    integer PRIMARY KEY CHECK (slot BETWEEN 0 AND 1023),
    node_id integer NOT NULL,
    version bigint NOT NULL DEFAULT 1,
    closed_until timestamptz
);
COMMENT ON TABLE queue_cluster.slot IS 'Which server owns which slot of keys. Change it through rebalance only.';
COMMENT ON COLUMN queue_cluster.slot.slot IS 'The slot: a hash of the key.';
COMMENT ON COLUMN queue_cluster.slot.node_id IS 'The server that owns it.';
COMMENT ON COLUMN queue_cluster.slot.version IS 'Grows with each change of the owner.';
COMMENT ON COLUMN queue_cluster.slot.closed_until IS
    'Until then the owner enqueues nothing under the slot''s keys, so that they become idle and it can move. '
    'Only on this server.';

-- A dump contains neither table: a copy that is restored elsewhere must call no server and own no slot.

CREATE FUNCTION queue_cluster.home() RETURNS integer STABLE PARALLEL SAFE LANGUAGE c
    AS 'MODULE_PATHNAME', 'pg_queue_cluster_home';
COMMENT ON FUNCTION queue_cluster.home IS 'The number of the server to which this session is connected.';

CREATE FUNCTION queue_cluster.slot_of(key text) RETURNS integer IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN (pg_catalog.hashtextextended(key COLLATE "C", 0) & 1023)::integer;
COMMENT ON FUNCTION queue_cluster.slot_of IS 'The slot of a key, 0 to 1023: the same on every server.';

-- This is called with each call of another server. Setting a search_path would cost as much as everything else. So such
-- functions set none, and qualify all names with their schema.
CREATE FUNCTION queue_cluster.conninfo(node_id integer) RETURNS text STABLE LANGUAGE plpgsql AS $$
DECLARE
    found queue_cluster.server;
BEGIN
    SELECT * INTO found FROM queue_cluster.server AS s WHERE s.node_id OPERATOR(pg_catalog.=) conninfo.node_id;
    IF found.state OPERATOR(pg_catalog.=) 'down'::pg_catalog.text THEN
        RAISE EXCEPTION 'server "%" is marked down', found.name USING ERRCODE = '08001',
            DETAIL = 'Its jobs, and the keys and schedules that it owns, wait for it.',
            HINT = 'Promote its standby or start it, then queue_cluster.mark_up.';
    ELSIF found.state IS NULL OR found.state OPERATOR(pg_catalog.=) 'removed'::pg_catalog.text THEN
        RAISE EXCEPTION 'there is no server with node number %', node_id USING ERRCODE = '42704',
            HINT = 'See queue_cluster.server, and queue_cluster.check() for copies that differ.';
    END IF;
    RETURN found.conninfo;
END
$$;
COMMENT ON FUNCTION queue_cluster.conninfo IS
    'How to connect to a server. Errors: 08001 it is marked down; 42704 it does not exist.';

CREATE FUNCTION queue_cluster.owner(key text) RETURNS text STABLE LANGUAGE sql
    RETURN (SELECT s.name FROM queue_cluster.slot AS o JOIN queue_cluster.server AS s USING (node_id)
            WHERE o.slot = queue_cluster.slot_of(key));
COMMENT ON FUNCTION queue_cluster.owner IS
    'The server that owns a group_key or unique_key, as this server knows it. '
    'A producer that connects there is at home.';

CREATE FUNCTION queue_cluster.others() RETURNS SETOF integer STABLE ROWS 3 LANGUAGE sql BEGIN ATOMIC
    SELECT s.node_id FROM queue_cluster.server AS s
    WHERE s.node_id <> queue_cluster.home() AND s.state IN ('up', 'draining') ORDER BY s.node_id;
END;
COMMENT ON FUNCTION queue_cluster.others IS 'The other servers that are not marked down.';

-- The identity is random, because servers from one image have the same system identifier. A dump does not contain it. A
-- standby and pg_upgrade keep it.
CREATE TABLE queue_cluster.own (identity uuid NOT NULL);
COMMENT ON TABLE queue_cluster.own IS 'Which server this is.';
COMMENT ON COLUMN queue_cluster.own.identity IS 'Made by CREATE EXTENSION.';
INSERT INTO queue_cluster.own VALUES (pg_catalog.gen_random_uuid());
CREATE FUNCTION queue_cluster.identity()
    RETURNS uuid STABLE LANGUAGE sql RETURN (SELECT o.identity FROM queue_cluster.own AS o);
COMMENT ON FUNCTION queue_cluster.identity IS 'Which server this is. A standby has the identity of its primary.';
