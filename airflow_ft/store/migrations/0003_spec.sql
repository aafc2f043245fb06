-- Version 3: what each run and checkpoint was made with. A specification is kept once, under the SHA-256 of its text;
-- '' where none was given, as in numbers of older versions.

CREATE TABLE spec (
    digest TEXT PRIMARY KEY,
    text TEXT NOT NULL,
    created_at BIGINT NOT NULL
);

ALTER TABLE run ADD COLUMN spec TEXT NOT NULL DEFAULT '';

ALTER TABLE checkpoint ADD COLUMN spec TEXT NOT NULL DEFAULT '';
