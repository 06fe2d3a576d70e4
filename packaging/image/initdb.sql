-- The image runs this once, as the superuser, in the database that it makes, POSTGRES_DB. Others want it said.
CREATE EXTENSION IF NOT EXISTS pg_queue;
