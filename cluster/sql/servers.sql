-- The servers, and which of them owns which slot of keys.
--
-- CREATE EXTENSION sets this anyway; repeated for readers and checkers of this script.
SET LOCAL search_path TO pg_catalog, pg_temp;

-- A plain CREATE SCHEMA fails if the name is taken, so none that another role owns is used; and makes the schema a
-- member.
CREATE SCHEMA queue_cluster;
COMMENT ON SCHEMA queue_cluster IS 'One queue over many servers: the functions of schema queue, for all of them.';

-- Every server has a copy of both tables. Each row has a version, and of two copies the one with the larger version is
-- right; so copies can be given to any server in any order, and repeated. Invariant: a slot changes its owner by a
-- commit on the owner itself, before any other server learns of it. So no two servers ever take themselves for its
-- owner.

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
COMMENT ON COLUMN queue_cluster.server.node_id IS 'Its pg_queue.node_id, which is in all ids that it makes.';
COMMENT ON COLUMN queue_cluster.server.name IS 'What it is called.';
COMMENT ON COLUMN queue_cluster.server.conninfo IS
    'How the others connect to it, without a user: they connect as the role that calls. '
    'All roles can read it, so no password.';
COMMENT ON COLUMN queue_cluster.server.state IS
    'up; draining: it gets no more slots, and gives away those it has; down: the others do not call it; removed.';
COMMENT ON COLUMN queue_cluster.server.identity IS
    'Its queue_cluster.identity(): by this a server notices that it has the number of another one.';
COMMENT ON COLUMN queue_cluster.server.version IS 'Of two copies of a row the one with the larger version counts.';

CREATE TABLE queue_cluster.slot (
    slot    integer PRIMARY KEY CHECK (slot BETWEEN 0 AND 1023),
    node_id integer NOT NULL,
    version bigint NOT NULL DEFAULT 1,
    closed_until timestamptz
);
COMMENT ON TABLE queue_cluster.slot IS 'Which server owns which slot of keys. Change it through rebalance only.';
COMMENT ON COLUMN queue_cluster.slot.slot IS 'The slot: a hash of the key.';
COMMENT ON COLUMN queue_cluster.slot.node_id IS 'The server that owns it.';
COMMENT ON COLUMN queue_cluster.slot.version IS 'Grows with each owner.';
COMMENT ON COLUMN queue_cluster.slot.closed_until IS
    'Until when the owner enqueues nothing under its keys, so that they become idle and the slot can move. '
    'Of this server alone.';

-- A dump has neither: a copy that is restored elsewhere must call nobody, nor own anything.
GRANT SELECT ON queue_cluster.server, queue_cluster.slot TO PUBLIC;
GRANT USAGE ON SCHEMA queue_cluster TO PUBLIC;

CREATE FUNCTION queue_cluster.home() RETURNS integer STABLE PARALLEL SAFE LANGUAGE c
    AS 'MODULE_PATHNAME', 'pg_queue_cluster_home';
COMMENT ON FUNCTION queue_cluster.home IS 'The number of the server that this session is connected to.';

CREATE FUNCTION queue_cluster.slot_of(key text) RETURNS integer IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN (pg_catalog.hashtextextended(key COLLATE "C", 0) & 1023)::integer;
COMMENT ON FUNCTION queue_cluster.slot_of IS 'The slot of a key, 0 to 1023: the same on every server.';

-- It is called with each call of another server. To set a search_path would cost as much as all of the rest, so such
-- functions have none and name the schema of all that they call.
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
    'How to connect to a server. Errors: 08001 it is marked down, 42704 there is none.';

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

-- Made by chance: servers that come from one image have the same system identifier. A dump does not have it, a standby
-- and pg_upgrade do.
CREATE TABLE queue_cluster.own (identity uuid NOT NULL);
COMMENT ON TABLE queue_cluster.own IS 'Which server this is.';
COMMENT ON COLUMN queue_cluster.own.identity IS 'Made by CREATE EXTENSION.';
INSERT INTO queue_cluster.own VALUES (pg_catalog.gen_random_uuid());
GRANT SELECT ON queue_cluster.own TO PUBLIC;
CREATE FUNCTION queue_cluster.identity()
    RETURNS uuid STABLE LANGUAGE sql RETURN (SELECT o.identity FROM queue_cluster.own AS o);
COMMENT ON FUNCTION queue_cluster.identity IS 'Which server this is. A standby is what its primary is.';
