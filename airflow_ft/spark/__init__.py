"""Spark: the launcher of a driver, what runs inside it, checkpoint locations, and helpers for jobs.

`airflow_ft.spark.task.launcher.run_stage` runs in the Airflow task and imports neither Airflow nor pyspark; the modules
`runner`, `staging`, `inputs` and `parsing` run inside the driver.
"""
