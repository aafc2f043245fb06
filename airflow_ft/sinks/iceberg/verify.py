"""Compare the tables with the log's rows, also after others have compacted their files."""

from airflow_ft.sinks.iceberg.requirements import CHECKS

verify = CHECKS.verify
