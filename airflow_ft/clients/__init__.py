"""Clients that several rooms share: Kafka, sessions of PostgreSQL, connections of other providers."""
