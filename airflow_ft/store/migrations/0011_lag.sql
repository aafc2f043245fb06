-- Version 11: how far a pipeline is behind its sources, and when it is late. Nothing is decided by it.

-- What the driver has told last of each source. `expected` of them were there when a scheduled stage began, and `done` of
-- these are read; 0 where nothing is known. `rate` is units a second.
CREATE TABLE source_lag (
    pipeline TEXT NOT NULL REFERENCES pipeline (name),
    source TEXT NOT NULL,
    unit TEXT NOT NULL,
    behind BIGINT NOT NULL,
    rate DOUBLE PRECISION,
    done BIGINT NOT NULL,
    expected BIGINT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (pipeline, source)
);

-- The same as of a checkpoint, for charts: JSON, by source. NULL: nobody has looked between it and the next one.
ALTER TABLE checkpoint ADD COLUMN lag TEXT;

-- Microseconds without anything confirmed after which the pipeline is late. NULL: never.
ALTER TABLE pipeline ADD COLUMN late_after BIGINT;
