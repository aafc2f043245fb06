"""The protocol: values, decisions and recovery. Imports neither Airflow nor Spark, and does no input or output itself.

Read in this order: `model` (values), `transitions` (the state machine as one table), `ports` (what the store and
the sinks must offer), `planning` (who carries the commit point), `coordinator` (one checkpoint, step by step),
`recovery` (what earlier runs left behind).
"""
