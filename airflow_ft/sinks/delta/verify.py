"""Compare the tables with the log's rows, also after others have compacted their files."""

from airflow_ft.sinks.delta.requirements import CHECKS

verify = CHECKS.verify
