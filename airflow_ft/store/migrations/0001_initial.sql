-- Version 1 of the decision log. Plain SQL that SQLite (3.31 or newer) and PostgreSQL (12 or newer) both understand.
-- Times are BIGINT microseconds since 1970 in UTC, by the store's clock. Booleans are 0 or 1. JSON is text.
-- No semicolon may stand inside a statement.

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

-- The row that every write locks first. `published` is the highest number ever published, `needs_stage` is 1 between a
-- rewind and the next begin_stage (nothing computed before the rewind may be published after it).
CREATE TABLE pipeline (
    name TEXT PRIMARY KEY,
    epoch BIGINT NOT NULL,
    next_number BIGINT NOT NULL,
    next_attempt BIGINT NOT NULL,
    next_event BIGINT NOT NULL,
    published BIGINT NOT NULL,
    status TEXT NOT NULL,
    halt_reason TEXT,
    halt_message TEXT NOT NULL,
    base_location TEXT,
    base_batch BIGINT,
    base_clean SMALLINT NOT NULL,
    needs_stage SMALLINT NOT NULL,
    turn_dag_id TEXT,
    turn_run_id TEXT,
    created_at BIGINT NOT NULL
);

CREATE TABLE lease (
    pipeline TEXT NOT NULL REFERENCES pipeline (name),
    holder TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    task TEXT NOT NULL,
    try_number BIGINT NOT NULL,
    counter BIGINT NOT NULL,
    PRIMARY KEY (pipeline, holder)
);

CREATE TABLE run (
    pipeline TEXT NOT NULL REFERENCES pipeline (name),
    dag_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    staged SMALLINT NOT NULL,
    interval_end BIGINT,
    PRIMARY KEY (pipeline, dag_id, run_id)
);

-- `epoch` is the one that last changed the state. `planned_by` is the newest number whose plan contains this segment.
-- `is_open` says what Checkpoint.is_undelivered and open_checkpoints say, `is_prunable` what prunable says, `is_base`
-- that position_before may return it, `is_referenced` that its files are needed: generated, so that no write can forget
-- them; each is the condition of a partial index, so that no look-up depends on the length of the history.
CREATE TABLE checkpoint (
    pipeline TEXT NOT NULL REFERENCES pipeline (name),
    number BIGINT NOT NULL,
    state TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    dag_id TEXT,
    run_id TEXT,
    predecessor BIGINT NOT NULL,
    segment_digest TEXT,
    segment_location TEXT,
    segment_rows TEXT,
    segment_bytes BIGINT,
    spark_location TEXT,
    spark_batch BIGINT,
    positions TEXT NOT NULL,
    plan TEXT,
    planned_by BIGINT,
    reason TEXT,
    message TEXT NOT NULL,
    after_abort TEXT,
    subsumed_by BIGINT,
    delivered_by BIGINT,
    rollback_pending SMALLINT NOT NULL DEFAULT 0,
    finalised SMALLINT NOT NULL,
    pruned_at BIGINT,
    triggered_at BIGINT NOT NULL,
    staged_at BIGINT,
    prepared_at BIGINT,
    decided_at BIGINT,
    completed_at BIGINT,
    is_open SMALLINT GENERATED ALWAYS AS (
        CASE
            WHEN state IN ('TRIGGERED', 'STAGED', 'PREPARED', 'COMMITTING', 'QUARANTINED') THEN 1
            WHEN state = 'COMPLETED' AND finalised = 0 THEN 1
            WHEN rollback_pending = 1 THEN 1
            WHEN segment_digest IS NOT NULL AND delivered_by IS NULL
                AND (after_abort IS NULL OR after_abort <> 'rewound') THEN 1
            ELSE 0
        END
    ) STORED,
    is_prunable SMALLINT GENERATED ALWAYS AS (
        CASE
            WHEN segment_digest IS NOT NULL AND delivered_by IS NOT NULL AND finalised = 1 AND pruned_at IS NULL THEN 1
            ELSE 0
        END
    ) STORED,
    is_delivered SMALLINT GENERATED ALWAYS AS (CASE WHEN delivered_by IS NOT NULL THEN 1 ELSE 0 END) STORED,
    is_base SMALLINT GENERATED ALWAYS AS (
        CASE WHEN spark_location IS NOT NULL AND (after_abort IS NULL OR after_abort <> 'rewound') THEN 1 ELSE 0 END
    ) STORED,
    is_referenced SMALLINT GENERATED ALWAYS AS (
        CASE
            WHEN (segment_location IS NOT NULL OR spark_location IS NOT NULL) AND pruned_at IS NULL
                AND (after_abort IS NULL OR after_abort <> 'rewound') THEN 1
            ELSE 0
        END
    ) STORED,
    PRIMARY KEY (pipeline, number)
);

CREATE INDEX checkpoint_open ON checkpoint (pipeline, number) WHERE is_open = 1;
CREATE INDEX checkpoint_prunable ON checkpoint (pipeline, number) WHERE is_prunable = 1;
CREATE INDEX checkpoint_base ON checkpoint (pipeline, number) WHERE is_base = 1;
CREATE INDEX checkpoint_referenced ON checkpoint (pipeline, number) WHERE is_referenced = 1;
CREATE INDEX checkpoint_delivered ON checkpoint (pipeline, number) WHERE is_delivered = 1;
CREATE INDEX checkpoint_completed ON checkpoint (pipeline, number) WHERE state = 'COMPLETED';
CREATE INDEX checkpoint_run ON checkpoint (pipeline, dag_id, run_id, number);

CREATE TABLE vote (
    pipeline TEXT NOT NULL,
    number BIGINT NOT NULL,
    participant TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    prepared BIGINT NOT NULL,
    notes TEXT NOT NULL DEFAULT '{}',
    rolled_back SMALLINT NOT NULL DEFAULT 0,
    proof TEXT,
    PRIMARY KEY (pipeline, number, participant),
    FOREIGN KEY (pipeline, number) REFERENCES checkpoint (pipeline, number)
);

-- What last_delivered answers: one row a participant, raised by the decision, so that no plan of history is read.
CREATE TABLE delivery (
    pipeline TEXT NOT NULL REFERENCES pipeline (name),
    participant TEXT NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (pipeline, participant)
);

-- Append-only. `id` counts within a pipeline, without gaps, in the order of the writes.
CREATE TABLE event (
    pipeline TEXT NOT NULL REFERENCES pipeline (name),
    id BIGINT NOT NULL,
    number BIGINT NOT NULL,
    at BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    kind TEXT NOT NULL,
    message TEXT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (pipeline, id)
);

CREATE INDEX event_number ON event (pipeline, number, id);
