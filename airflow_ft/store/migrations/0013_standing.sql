-- Version 13: what a list says of each pipeline, kept by the writes that change it (`airflow_ft.store.standing`), so that
-- nobody reads checkpoints for it; and what a driver says of a checkpoint. Nothing is decided by any of it.

-- How many of its open checkpoints are quarantined, decided, or wait for delivery.
ALTER TABLE pipeline ADD COLUMN quarantined BIGINT NOT NULL DEFAULT 0;

ALTER TABLE pipeline ADD COLUMN committing BIGINT NOT NULL DEFAULT 0;

ALTER TABLE pipeline ADD COLUMN undelivered BIGINT NOT NULL DEFAULT 0;

-- The first and the last one, by name, of the DAGs that have made its checkpoints.
ALTER TABLE pipeline ADD COLUMN first_dag TEXT;

ALTER TABLE pipeline ADD COLUMN last_dag TEXT;

-- Where it has a `late_after`: when something was confirmed last, and when its sources were found to be read.
ALTER TABLE pipeline ADD COLUMN confirmed_at BIGINT;

ALTER TABLE pipeline ADD COLUMN read_at BIGINT;

ALTER TABLE pipeline ADD COLUMN complete_at BIGINT;

-- Of its last write, of whatever kind; each has a later one.
ALTER TABLE pipeline ADD COLUMN changed_at BIGINT NOT NULL DEFAULT 0;

UPDATE pipeline SET
    quarantined = (SELECT count(*) FROM checkpoint WHERE pipeline = name AND is_open = 1 AND state = 'QUARANTINED'),
    committing = (SELECT count(*) FROM checkpoint WHERE pipeline = name AND is_open = 1 AND state = 'COMMITTING'),
    undelivered = (SELECT count(*) FROM checkpoint WHERE pipeline = name AND is_open = 1
        AND segment_digest IS NOT NULL AND delivered_by IS NULL AND (after_abort IS NULL OR after_abort <> 'rewound')),
    first_dag = (SELECT min(dag_id) FROM checkpoint WHERE pipeline = name),
    last_dag = (SELECT max(dag_id) FROM checkpoint WHERE pipeline = name),
    confirmed_at = (SELECT completed_at FROM checkpoint WHERE pipeline = name AND state = 'COMPLETED'
        ORDER BY number DESC LIMIT 1),
    read_at = (SELECT max(read_as_of) FROM run WHERE pipeline = name AND read_as_of IS NOT NULL),
    complete_at = (SELECT max(stage_began) FROM run WHERE pipeline = name AND complete = 1);

-- What has changed last: one look tells that nothing has changed since another one.
CREATE INDEX pipeline_changed ON pipeline (changed_at, name);

-- Spark's id of the application that was to compute it. "": not known.
ALTER TABLE checkpoint ADD COLUMN application TEXT NOT NULL DEFAULT '';

-- How large the state was after it (`core.model.StateSizes`): JSON. NULL: nobody has measured it, or it has none.
ALTER TABLE checkpoint ADD COLUMN state_sizes TEXT;
