"""Cassandra as a sink: rows by primary key, each with a write timestamp that the sink's document has given out."""
