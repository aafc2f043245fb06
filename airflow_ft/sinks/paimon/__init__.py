"""An Apache Paimon table in a folder, as a sink. `spec` is what a DAG author writes."""
