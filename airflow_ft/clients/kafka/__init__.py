"""A Kafka cluster, for sources, sinks and the doctor: clients from a connection, what the brokers say of topics."""
