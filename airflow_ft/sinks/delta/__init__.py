"""A Delta Lake table through delta-rs, as a sink. `spec` is what a DAG author writes."""
