-- Version 6: barriers, which several pipelines have in common.

-- `injected_at` is of the first injection: everything that was in the pipeline's sources then is before the barrier.
CREATE TABLE barrier (
    id TEXT NOT NULL,
    pipeline TEXT NOT NULL REFERENCES pipeline (name),
    injected_at BIGINT NOT NULL,
    injected_by TEXT NOT NULL,
    PRIMARY KEY (id, pipeline)
);

CREATE INDEX barrier_at ON barrier (injected_at, id, pipeline);

-- As of which time a number and those before it hold everything: of the runs that found nothing new the latest one.
DROP INDEX run_complete_through;

CREATE INDEX run_complete_through ON run (pipeline, published_through, stage_began) WHERE complete = 1;
