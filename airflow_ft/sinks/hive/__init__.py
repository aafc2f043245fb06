"""The sink for tables of a Hive metastore."""
