"""Clients that several packages share: Kafka, sessions of PostgreSQL, connections of other providers."""
