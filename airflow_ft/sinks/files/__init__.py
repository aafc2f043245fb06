"""Files in a folder, as a sink: Parquet, CSV or JSON lines. `spec` is what a DAG author writes."""
