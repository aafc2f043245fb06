-- Version 2: a run knows its map index and the task that staged it, and up to where it has read its sources.

ALTER TABLE pipeline ADD COLUMN turn_map_index BIGINT NOT NULL DEFAULT -1;

ALTER TABLE checkpoint ADD COLUMN map_index BIGINT NOT NULL DEFAULT -1;

DROP INDEX checkpoint_run;

CREATE INDEX checkpoint_run ON checkpoint (pipeline, dag_id, run_id, map_index, number);

-- Rewritten, since SQLite cannot change a primary key. `stage_began` and `published_through` belong to the newest
-- attempt at the stage, `complete` says that nothing of its input is left out. Of older runs none of it is known.
CREATE TABLE mapped_run (
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
    PRIMARY KEY (pipeline, dag_id, run_id, map_index)
);

INSERT INTO mapped_run (pipeline, dag_id, run_id, map_index, epoch, staged, interval_end)
SELECT pipeline, dag_id, run_id, -1, epoch, staged, interval_end FROM run;

DROP TABLE run;

ALTER TABLE mapped_run RENAME TO run;

-- What gates look for, and what a rewind takes back, whatever the length of the history.
CREATE INDEX run_complete_began ON run (pipeline, stage_began) WHERE complete = 1;
CREATE INDEX run_complete_through ON run (pipeline, published_through) WHERE complete = 1;
CREATE INDEX checkpoint_rewound ON checkpoint (pipeline, number) WHERE after_abort = 'rewound';
