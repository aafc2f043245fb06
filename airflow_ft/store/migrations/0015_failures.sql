-- Version 15: why the last run failed, what each sink refused last, and warnings. For people: nothing is decided by it.

-- JSON (`core.failure.Failure`); NULL: the last run has not failed. Cleared when a run takes the turn, or is confirmed.
ALTER TABLE pipeline ADD COLUMN failure TEXT;

-- 1: the newest stage is one of a stream.
ALTER TABLE pipeline ADD COLUMN streaming BIGINT NOT NULL DEFAULT 0;

-- 1: a person retired it, and no stage has begun since.
ALTER TABLE pipeline ADD COLUMN retired BIGINT NOT NULL DEFAULT 0;

-- 1: `late_after` is the default of a stream, which counts while a run is at work.
ALTER TABLE pipeline ADD COLUMN late_default BIGINT NOT NULL DEFAULT 0;

-- JSON (`core.failure.Failure`): the error of the newest attempt. NULL: it met none.
ALTER TABLE vote ADD COLUMN problem TEXT;

-- `at`: when it was told last. A confirmed run deletes those that are older than its stage.
CREATE TABLE pipeline_warning (
    pipeline TEXT NOT NULL REFERENCES pipeline (name),
    code TEXT NOT NULL,
    subject TEXT NOT NULL,
    message TEXT NOT NULL,
    remedy TEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (pipeline, code, subject)
);
