"""Flights from a Kafka topic into several systems at once: one checkpoint, one decision, all or none.

The same job as `flights`. Every flight goes into a MySQL table and, as a copy, into each system of the table `COPIES`;
the late ones go into a Kafka topic. Each row is in all of them, or in none, exactly once, whichever of the processes
dies on the way. MySQL decides. Where rows have a key, it is the number that a flight has among its carrier's.

It needs what `flights` needs, and for the copies:

| copy | connection | beside it |
| --- | --- | --- |
| PostgreSQL | `postgres_default` | the table in `flights_postgres.sql` |
| Iceberg | `lake`, which leads to a catalog | |
| Hive | `metastore`, of type `hive_metastore` | |
| Redis | `redis_default` | `appendfsync always` on the server |
| HBase | `hbase_default` | a table `flights` with the column family `f` |
| Cassandra | `cassandra_default` with a keyspace | the table in `flights_cassandra.sql` |

The extras of airflow-ft with the same names install the clients, as in `pip install 'airflow-ft[delta,redis]'`.
`make demo SINKS=redis,cassandra,hbase,iceberg,paimon,hive` runs it with these copies.
"""

from datetime import timedelta

from airflow.sdk import DAG

from airflow_ft import (
    CassandraSink,
    CheckpointConfig,
    CheckpointedPipeline,
    DeltaSink,
    FilesSink,
    HBaseSink,
    HiveSink,
    IcebergSink,
    KafkaSink,
    KafkaSource,
    MySqlSink,
    PaimonSink,
    PostgresSink,
    RedisSink,
)

COPIES = {
    "postgres": PostgresSink(table="flights"),
    "files": FilesSink(folder="/data/lake/files", name="files"),
    "delta": DeltaSink(table="/data/lake/delta", name="delta"),
    "iceberg": IcebergSink(table="lake.shop.flights", name="iceberg"),
    "paimon": PaimonSink(table="/data/lake/paimon/warehouse/shop.db/flights", name="paimon"),
    "hive": HiveSink(table="metastore.shop.flights", name="hive"),
    "redis": RedisSink(key="flight:{carrier}:{carrier_count}"),
    "hbase": HBaseSink(table="flights", row_key="{carrier}:{carrier_count}", family="f"),
    "cassandra": CassandraSink(table="flights"),
}

with DAG(
    "flights_everywhere",
    schedule=None,
    catchup=False,
    default_args={"retry_delay": timedelta(seconds=2)},  # for the demonstration's sake
    tags=["airflow-ft", "example"],
    doc_md=__doc__,
):
    CheckpointedPipeline(
        pipeline="flights",
        job="airflow_ft.example_dags.jobs.flights_everywhere:Flights",
        job_args={"copies": list(COPIES)},
        sources={"flights": KafkaSource(topics=["flights"], max_offsets_per_trigger=42_100)},
        sinks={
            "flights": MySqlSink(table="flights"),
            "delays": KafkaSink(topic="delays", key="key"),
            **COPIES,
        },
        checkpointing=CheckpointConfig(max_delivery_rows=100_000),
    )
