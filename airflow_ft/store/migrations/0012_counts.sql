-- Version 12: how many checkpoints have ended how, and those that failed for one reason. Nothing is decided by it.

-- Of all numbers that there ever were: to count them would mean to read all of them.
ALTER TABLE pipeline ADD COLUMN completed BIGINT NOT NULL DEFAULT 0;

ALTER TABLE pipeline ADD COLUMN subsumed BIGINT NOT NULL DEFAULT 0;

ALTER TABLE pipeline ADD COLUMN aborted BIGINT NOT NULL DEFAULT 0;

UPDATE pipeline SET
    completed = (SELECT count(*) FROM checkpoint WHERE pipeline = name AND state = 'COMPLETED'),
    subsumed = (SELECT count(*) FROM checkpoint WHERE pipeline = name AND state = 'SUBSUMED'),
    aborted = (SELECT count(*) FROM checkpoint WHERE pipeline = name AND state = 'ABORTED');

CREATE INDEX checkpoint_reason ON checkpoint (pipeline, reason, number) WHERE reason IS NOT NULL;
