-- The schema of the decision log. Plain SQL for SQLite (3.31 or newer, with JSON functions) and PostgreSQL (12 or newer).
-- Times are BIGINT microseconds since 1970 in UTC, by the store's clock. Booleans are 0 or 1. JSON is text.
-- A statement must not contain a semicolon, except at its end.

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

-- Every write locks its pipeline's row first.
-- published: the highest number ever published.
-- needs_stage: 1 between a rewind and the next begin_stage. Nothing computed before the rewind may be published after it.
-- halt_*: the error that halted it (`protocol.failure.Halt`). renamed_to: the pipeline that continues it. NULL: none.
-- origin_*: where a rewind of the first number leads if the pipeline was restored before it had a number.
-- told_from: the first number whose events are kept.
-- late_after: microseconds without a confirmed checkpoint after which the pipeline is late. NULL: never.
-- late_default: 1 if `late_after` is the default of a stream, which counts only while a run has the turn.
-- completed, subsumed, aborted: counts of all numbers, also of pruned ones.
-- quarantined, committing, undelivered: counts of open checkpoints (`airflow_ft.store.summary`).
-- first_dag, last_dag: the first and the last name, in order, of the DAGs whose runs have worked on it.
-- confirmed_at, read_at, complete_at: the last confirmation, and when the sources were last found to be read.
-- changed_at: its last write of any kind; each write has a later one.
-- former: JSON of the pipeline that it was renamed from: name, last delivered number, and the number that ends it.
-- failure: JSON (`protocol.failure.Failure`) of the last run. NULL: it has not failed. A run that takes the turn clears it.
-- counted: confirmed numbers up to this one are in the result of a run (`counted`, the table).
-- streaming: 1 if the newest stage is one of a stream. retired: 1 if a person retired it and no stage has begun since.
CREATE TABLE pipeline (
    name TEXT PRIMARY KEY,
    epoch BIGINT NOT NULL,
    next_number BIGINT NOT NULL,
    next_attempt BIGINT NOT NULL,
    next_event BIGINT NOT NULL,
    published BIGINT NOT NULL,
    status TEXT NOT NULL,
    halt_reason TEXT,
    halt_code TEXT NOT NULL DEFAULT '',
    halt_message TEXT NOT NULL DEFAULT '',
    halt_remedy TEXT NOT NULL DEFAULT '',
    renamed_to TEXT,
    base_location TEXT,
    base_batch BIGINT,
    base_clean SMALLINT NOT NULL,
    needs_stage SMALLINT NOT NULL,
    turn_dag_id TEXT,
    turn_run_id TEXT,
    turn_map_index BIGINT NOT NULL DEFAULT -1,
    origin_location TEXT,
    origin_batch BIGINT,
    told_from BIGINT NOT NULL DEFAULT 1,
    late_after BIGINT,
    late_default BIGINT NOT NULL DEFAULT 0,
    completed BIGINT NOT NULL DEFAULT 0,
    subsumed BIGINT NOT NULL DEFAULT 0,
    aborted BIGINT NOT NULL DEFAULT 0,
    quarantined BIGINT NOT NULL DEFAULT 0,
    committing BIGINT NOT NULL DEFAULT 0,
    undelivered BIGINT NOT NULL DEFAULT 0,
    first_dag TEXT,
    last_dag TEXT,
    confirmed_at BIGINT,
    read_at BIGINT,
    complete_at BIGINT,
    changed_at BIGINT NOT NULL DEFAULT 0,
    former TEXT,
    failure TEXT,
    streaming BIGINT NOT NULL DEFAULT 0,
    retired BIGINT NOT NULL DEFAULT 0,
    counted BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL
);

-- The newest change: one look shows whether anything has changed since another look.
CREATE INDEX pipeline_changed ON pipeline (changed_at, name);

-- renewed_at: its last renewal. lease_time: microseconds without renewal after which its holder is shown as not running.
-- A challenger never reads these two: it watches `counter` by its own clock.
CREATE TABLE lease (
    pipeline TEXT NOT NULL REFERENCES pipeline (name),
    holder TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    task TEXT NOT NULL,
    try_number BIGINT NOT NULL,
    counter BIGINT NOT NULL,
    doing TEXT NOT NULL DEFAULT '',
    renewed_at BIGINT NOT NULL,
    lease_time BIGINT NOT NULL,
    PRIMARY KEY (pipeline, holder)
);

-- The specification of runs and checkpoints, stored once under the SHA-256 of its text.
CREATE TABLE spec (
    digest TEXT PRIMARY KEY,
    text TEXT NOT NULL,
    created_at BIGINT NOT NULL
);

-- stage_began, published_through: of the newest attempt at the stage. complete: 1 if it left out none of its input.
-- read_as_of, read_through: a stream found nothing new at this time, and its numbers up to `read_through` hold
-- everything until then. restored_from: the savepoint that the run has restored, so that it restores it once.
CREATE TABLE run (
    pipeline TEXT NOT NULL REFERENCES pipeline (name),
    dag_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    map_index BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    staged SMALLINT NOT NULL,
    interval_end BIGINT,
    stage_task TEXT NOT NULL DEFAULT '',
    stage_began BIGINT,
    published_through BIGINT NOT NULL DEFAULT 0,
    complete SMALLINT NOT NULL DEFAULT 0,
    spec TEXT NOT NULL DEFAULT '',
    read_as_of BIGINT,
    read_through BIGINT NOT NULL DEFAULT 0,
    restored_from TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (pipeline, dag_id, run_id, map_index)
);

-- The result of the run counts the confirmed numbers above `above` up to `through`. Ranges of a pipeline never overlap.
CREATE TABLE counted (
    pipeline TEXT NOT NULL REFERENCES pipeline (name),
    through BIGINT NOT NULL,
    above BIGINT NOT NULL,
    dag_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    map_index BIGINT NOT NULL,
    PRIMARY KEY (pipeline, through)
);

CREATE INDEX counted_run ON counted (pipeline, dag_id, run_id, map_index, through);

-- Gates and rewinds use these, so their cost does not grow with the history.
CREATE INDEX run_complete_began ON run (pipeline, stage_began) WHERE complete = 1;
CREATE INDEX run_complete_through ON run (pipeline, published_through, stage_began) WHERE complete = 1;
CREATE INDEX run_incomplete_began ON run (pipeline, stage_began) WHERE complete = 0;
CREATE INDEX run_staged ON run (pipeline, published_through) WHERE staged = 1;
CREATE INDEX run_read ON run (pipeline, read_as_of) WHERE read_as_of IS NOT NULL;

-- epoch: the one that last changed the state. planned_by: the newest number whose plan contains this segment.
-- as_of: everything that the sources held at this time is in this number or an earlier one. NULL: unknown.
-- lag: JSON, by source, for charts. NULL: nobody measured it. state_sizes: JSON (`protocol.model.StateSizes`).
-- position_digest: SHA-256 of positions that a program of the author gave (`protocol.position`), to find them. NULL: other
-- positions.
-- delivered_rows: rows of all segments of its plan that are in the sinks. NULL: it is not COMPLETED.
-- application: Spark's id of the application that was to compute it. '': unknown.
-- Generated columns, so that no write can forget them, and conditions of partial indexes, so that no query's cost grows
-- with the history. is_open: as Checkpoint.is_undelivered and open_checkpoints. is_prunable: as prunable. is_base:
-- position_before may return it. is_referenced: its files are needed.
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
    position_digest TEXT,
    plan TEXT,
    planned_by BIGINT,
    reason TEXT,
    message TEXT NOT NULL,
    after_abort TEXT,
    subsumed_by BIGINT,
    delivered_by BIGINT,
    delivered_rows BIGINT,
    rollback_pending SMALLINT NOT NULL DEFAULT 0,
    finalised SMALLINT NOT NULL,
    pruned_at BIGINT,
    map_index BIGINT NOT NULL DEFAULT -1,
    spec TEXT NOT NULL DEFAULT '',
    as_of BIGINT,
    lag TEXT,
    application TEXT NOT NULL DEFAULT '',
    state_sizes TEXT,
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
CREATE INDEX checkpoint_run ON checkpoint (pipeline, dag_id, run_id, map_index, number);
CREATE INDEX checkpoint_rewound ON checkpoint (pipeline, number) WHERE after_abort = 'rewound';
CREATE INDEX checkpoint_position ON checkpoint (pipeline, position_digest, number)
    WHERE position_digest IS NOT NULL AND segment_digest IS NOT NULL;
CREATE INDEX checkpoint_position_left ON checkpoint (pipeline, number)
    WHERE position_digest IS NOT NULL AND after_abort = 'rewound';
CREATE INDEX checkpoint_position_unpublished ON checkpoint (pipeline, position_digest, number)
    WHERE position_digest IS NOT NULL AND segment_digest IS NULL;
CREATE INDEX checkpoint_as_of ON checkpoint (pipeline, as_of)
    WHERE as_of IS NOT NULL AND (after_abort IS NULL OR after_abort <> 'rewound');
CREATE INDEX checkpoint_covering ON checkpoint (pipeline, number)
    WHERE as_of IS NOT NULL AND (after_abort IS NULL OR after_abort <> 'rewound');
CREATE INDEX checkpoint_failed ON checkpoint (pipeline, number) WHERE reason IS NOT NULL;
CREATE INDEX checkpoint_reason ON checkpoint (pipeline, reason, number) WHERE reason IS NOT NULL;

-- problem: JSON (`protocol.failure.Failure`) of the newest attempt. NULL: it met none.
CREATE TABLE vote (
    pipeline TEXT NOT NULL,
    number BIGINT NOT NULL,
    participant TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    prepared BIGINT NOT NULL,
    notes TEXT NOT NULL DEFAULT '{}',
    rolled_back SMALLINT NOT NULL DEFAULT 0,
    proof TEXT,
    problem TEXT,
    PRIMARY KEY (pipeline, number, participant),
    FOREIGN KEY (pipeline, number) REFERENCES checkpoint (pipeline, number)
);

-- The last delivered number of each participant, raised by the decision, so that no plan of the history is read.
CREATE TABLE delivery (
    pipeline TEXT NOT NULL REFERENCES pipeline (name),
    participant TEXT NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (pipeline, participant)
);

-- Append-only. id: counts within a pipeline, without gaps, in the order of the writes.
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
CREATE INDEX event_savepoint ON event (pipeline, id) WHERE kind = 'SAVEPOINT';
CREATE INDEX event_restored ON event (pipeline, id) WHERE kind = 'RESTORED';
CREATE INDEX event_halted ON event (pipeline, id) WHERE kind = 'HALTED';
CREATE INDEX event_adopted ON event (pipeline, id) WHERE kind = 'ADOPTED';

-- Requests of people to a stream. outcome: NULL until it is answered. missing: JSON list of the requested parts that were
-- not done.
CREATE TABLE request (
    pipeline TEXT NOT NULL REFERENCES pipeline (name),
    id BIGINT NOT NULL,
    kind TEXT NOT NULL,
    arguments TEXT NOT NULL,
    asked_by TEXT NOT NULL,
    asked_at BIGINT NOT NULL,
    answered_at BIGINT,
    outcome TEXT,
    missing TEXT,
    PRIMARY KEY (pipeline, id)
);

CREATE INDEX request_open ON request (pipeline, id) WHERE outcome IS NULL;

-- Barriers across pipelines. injected_at: the time of the first injection. Everything in the pipeline's sources at that
-- time is before the barrier.
CREATE TABLE barrier (
    id TEXT NOT NULL,
    pipeline TEXT NOT NULL REFERENCES pipeline (name),
    injected_at BIGINT NOT NULL,
    injected_by TEXT NOT NULL,
    PRIMARY KEY (id, pipeline)
);

CREATE INDEX barrier_at ON barrier (injected_at, id, pipeline);

-- The driver's last report on each source. expected: units that were there when a scheduled stage began; done: how many
-- of these are read; 0 where unknown. rate: units a second.
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

-- at: the last report of the warning. A confirmed run deletes warnings that are older than its stage.
CREATE TABLE pipeline_warning (
    pipeline TEXT NOT NULL REFERENCES pipeline (name),
    code TEXT NOT NULL,
    subject TEXT NOT NULL,
    message TEXT NOT NULL,
    remedy TEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (pipeline, code, subject)
);
