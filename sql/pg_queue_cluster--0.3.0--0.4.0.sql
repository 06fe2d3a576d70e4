\echo Use "ALTER EXTENSION pg_queue_cluster UPDATE TO '0.4.0'" to load this file. \quit

-- Made by `make generate` from cluster/sql and the transition: do not edit.

SET LOCAL search_path TO pg_catalog, pg_temp;

