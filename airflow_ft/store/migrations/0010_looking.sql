-- Version 10: what the page looks for.

CREATE INDEX checkpoint_failed ON checkpoint (pipeline, number) WHERE reason IS NOT NULL;

CREATE INDEX event_savepoint ON event (pipeline, id) WHERE kind = 'SAVEPOINT';

CREATE INDEX event_restored ON event (pipeline, id) WHERE kind = 'RESTORED';
