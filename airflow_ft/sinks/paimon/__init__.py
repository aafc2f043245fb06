"""An Apache Paimon table in a folder, as a sink. `spec` is what a DAG author writes.

The package reads and writes the format itself. pypaimon 2.1 cannot be installed beside it: it requires a PyArrow below
20, and airflow-ft requires 21. Its commits are no compare-and-set either, see `airflow_ft.sinks.paimon.table`.
"""
