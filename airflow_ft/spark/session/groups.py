"""Settings of Spark in a group of streams: which of them a JVM has once, and which belong to a stream's session."""

from __future__ import annotations

from airflow_ft.protocol.errors import ConfigurationError

DEFAULTS = {
    # A large micro-batch of one stream leaves cores for the others.
    "spark.scheduler.mode": "FAIR",
    # RocksDB's memory is limited for all state stores together, not for each.
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
}
SQL = "spark.sql."
JVM_WIDE = (
    "spark.sql.broadcastExchange.maxThreadThreshold",
    "spark.sql.cache.serializer",
    "spark.sql.catalog.spark_catalog.defaultDatabase",
    "spark.sql.catalogImplementation",
    "spark.sql.codegen.cache.maxEntries",
    "spark.sql.codegen.comments",
    "spark.sql.debug",
    "spark.sql.defaultUrlStreamHandlerFactory.enabled",
    "spark.sql.event.truncate.length",
    "spark.sql.extensions",
    "spark.sql.filesourceTableRelationCacheSize",
    "spark.sql.globalTempDatabase",
    "spark.sql.hive.",
    "spark.sql.legacy.sessionInitWithConfigDefaults",
    "spark.sql.metadataCacheTTLSeconds",
    "spark.sql.queryExecutionListeners",
    "spark.sql.resultQueryStage.maxThreadThreshold",
    "spark.sql.shuffleExchange.maxThreadThreshold",
    "spark.sql.sources.disabledJdbcConnProviderList",
    "spark.sql.sources.schemaStringLengthThreshold",
    "spark.sql.streaming.streamingQueryListeners",
    "spark.sql.streaming.stateStore.maintenanceInterval",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage",
    "spark.sql.streaming.stateStore.rocksdb.highPriorityPoolRatio",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB",
    "spark.sql.streaming.stateStore.rocksdb.writeBufferCacheRatio",
    "spark.sql.streaming.ui.",
    "spark.sql.subquery.maxThreadThreshold",
    "spark.sql.ui.",
    "spark.sql.warehouse.dir",
)
"""Settings of Spark SQL that a JVM has once, by their beginnings; all others belong to a session."""


def is_of_session(name: str) -> bool:
    """Return whether streams of one JVM can have their own values of this setting."""
    return name.startswith(SQL) and not name.startswith(JVM_WIDE)


OWN = ("spark.app.name", "spark.jars", "spark.jars.packages")
"""Settings of the JVM that need not be equal: the group gives it its own."""


def unequal_setting(name: str, pipelines: list[str]) -> ConfigurationError:
    """The error for a setting of Spark that one JVM has once."""
    return ConfigurationError(
        f"the streams of a group share one JVM, but {' and '.join(pipelines)} set {name} to another value than others.",
        code="group_unequal",
        remedy=f"Set {name} to the same value for all streams of the group. Or run the stream in a task of its own.",
        setting=name,
        pipelines=pipelines,
    )


def two_connections(bucket: str, pipelines: list[str]) -> ConfigurationError:
    """The error for a bucket that streams of one JVM would read with different credentials."""
    return ConfigurationError(
        f"the streams of a group share one JVM, but {' and '.join(pipelines)} reach the bucket {bucket} with another"
        " connection than others.",
        code="group_unequal",
        remedy="Name the same connection in wal_root of all streams of the group. Or run the stream in a task of its"
        " own.",
        setting="wal_root",
        pipelines=pipelines,
    )
