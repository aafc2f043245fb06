"""The demonstration: real flights through Kafka, Spark, Airflow and MySQL while processes are killed. `make demo`."""
