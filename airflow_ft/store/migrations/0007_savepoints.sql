-- Version 7: pipelines that begin with a savepoint.

-- Where a rewind of the first number goes to, when the pipeline was restored before it had any.
ALTER TABLE pipeline ADD COLUMN origin_location TEXT;

ALTER TABLE pipeline ADD COLUMN origin_batch BIGINT;
