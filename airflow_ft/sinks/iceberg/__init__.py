"""The sink for Iceberg tables."""
