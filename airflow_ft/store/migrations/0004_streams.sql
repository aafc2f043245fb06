-- Version 4: how far a stream has read, and what people ask of one.

-- Everything that was in the sources at this time is in this number, or in one before it. NULL: not known.
ALTER TABLE checkpoint ADD COLUMN as_of BIGINT;

CREATE INDEX checkpoint_as_of ON checkpoint (pipeline, as_of)
    WHERE as_of IS NOT NULL AND (after_abort IS NULL OR after_abort <> 'rewound');

CREATE INDEX checkpoint_covering ON checkpoint (pipeline, number)
    WHERE as_of IS NOT NULL AND (after_abort IS NULL OR after_abort <> 'rewound');

-- The same of a stream that finds nothing new: in the numbers up to `read_through`.
ALTER TABLE run ADD COLUMN read_as_of BIGINT;

ALTER TABLE run ADD COLUMN read_through BIGINT NOT NULL DEFAULT 0;

CREATE INDEX run_read ON run (pipeline, read_as_of) WHERE read_as_of IS NOT NULL;

-- `outcome` is NULL while nobody has answered.
CREATE TABLE request (
    pipeline TEXT NOT NULL REFERENCES pipeline (name),
    id BIGINT NOT NULL,
    kind TEXT NOT NULL,
    arguments TEXT NOT NULL,
    asked_by TEXT NOT NULL,
    asked_at BIGINT NOT NULL,
    answered_at BIGINT,
    outcome TEXT,
    PRIMARY KEY (pipeline, id)
);

CREATE INDEX request_open ON request (pipeline, id) WHERE outcome IS NULL;
