-- Version 8: a run knows the savepoint that it has restored, so that it does so once.

ALTER TABLE run ADD COLUMN restored_from TEXT NOT NULL DEFAULT '';
