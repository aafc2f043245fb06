"""Everything that a job imports: the decorator, exact parsing, keyed state and uids."""
