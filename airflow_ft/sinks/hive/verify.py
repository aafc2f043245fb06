"""Compare a table's rows with the log's, as the metastore names their files."""

from airflow_ft.sinks.hive.requirements import CHECKS

verify = CHECKS.verify
