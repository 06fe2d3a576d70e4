-- A function whose arguments change stays until the new one is there, which gets the grants of its name.
ALTER FUNCTION queue.create RENAME TO former_create;
ALTER FUNCTION queue.former_create SET SCHEMA queue_internal;
DROP FUNCTION queue.extend_many(bigint[], interval);
ALTER TABLE queue_internal.claim_0 ADD COLUMN worker text, ADD COLUMN cost integer;
ALTER TABLE queue_internal.claim_1 ADD COLUMN worker text, ADD COLUMN cost integer;
ALTER TABLE queue_internal.claim_2 ADD COLUMN worker text, ADD COLUMN cost integer;
ALTER TABLE queue_internal.claim_3 ADD COLUMN worker text, ADD COLUMN cost integer;
ALTER TABLE queue_internal.claim_4 ADD COLUMN worker text, ADD COLUMN cost integer;
ALTER TABLE queue_internal.claim_5 ADD COLUMN worker text, ADD COLUMN cost integer;
ALTER TABLE queue_internal.claim_6 ADD COLUMN worker text, ADD COLUMN cost integer;
ALTER TABLE queue_internal.claim_7 ADD COLUMN worker text, ADD COLUMN cost integer;
ALTER TABLE queue_internal.claim_8 ADD COLUMN worker text, ADD COLUMN cost integer;
ALTER TABLE queue_internal.claim_9 ADD COLUMN worker text, ADD COLUMN cost integer;
