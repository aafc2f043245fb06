"""Redis as a sink: rows by key. Rows go in by scripts, which look at the fence first."""
