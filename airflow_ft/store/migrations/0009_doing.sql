-- Version 9: whoever is at work says how far it has come.

ALTER TABLE lease ADD COLUMN doing TEXT NOT NULL DEFAULT '';
