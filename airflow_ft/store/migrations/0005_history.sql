-- Version 5: the first number of which events are kept. To look for it among the events would mean to pass over what was
-- deleted, and what PostgreSQL has not cleaned up yet.
ALTER TABLE pipeline ADD COLUMN told_from BIGINT NOT NULL DEFAULT 1;
