"""What the example DAGs run inside Spark; nothing here is imported when a DAG is parsed."""
