-- On the primary, after bridge/primary.sql.
CREATE ROLE taker LOGIN REPLICATION PASSWORD 'taker';
CREATE ROLE app LOGIN PASSWORD 'app';
SELECT queue_bridge.admit('taker'), queue_bridge.grant('app', '{produce,consume,manage}');
