"""The protocol: values, decisions and recovery. Imports neither Airflow nor Spark, and does no I/O.

Read in this order: `model`, `votes` and `pipelines` (values), `transitions` (the table of allowed state changes),
`decision_log`, `delivery_log` and `participant` (protocols of the store and the sinks). Then `planning` (choice of the
commit point), `coordinator` (the steps of one checkpoint), `recovery` (checkpoints that earlier runs left).
"""
