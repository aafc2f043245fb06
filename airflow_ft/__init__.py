"""Exactly-once delivery of PySpark pipelines, orchestrated by Apache Airflow.

What a DAG author needs is importable from here and loaded on first use, so that `import airflow_ft` costs nothing::

    from airflow_ft import CheckpointConfig, CheckpointedPipeline, KafkaSink, KafkaSource, MySqlSink
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_ft.jobs.inline.decorator import job as job
    from airflow_ft.operators.barrier import InjectBarrierOperator as InjectBarrierOperator
    from airflow_ft.operators.external import ExternalFolderOperator as ExternalFolderOperator
    from airflow_ft.operators.external import ExternalStageOperator as ExternalStageOperator
    from airflow_ft.operators.form import pipeline_params as pipeline_params
    from airflow_ft.operators.maintenance import MaintenanceOperator as MaintenanceOperator
    from airflow_ft.operators.maintenance import maintenance_dag as maintenance_dag
    from airflow_ft.operators.pipeline import CheckpointedPipeline as CheckpointedPipeline
    from airflow_ft.operators.savepoint import DisposeSavepointOperator as DisposeSavepointOperator
    from airflow_ft.operators.savepoint import RestoreSavepointOperator as RestoreSavepointOperator
    from airflow_ft.operators.savepoint import StopStreamOperator as StopStreamOperator
    from airflow_ft.operators.savepoint import TriggerSavepointOperator as TriggerSavepointOperator
    from airflow_ft.operators.savepoint import savepoint_params as savepoint_params
    from airflow_ft.operators.stream import StreamingPipelineOperator as StreamingPipelineOperator
    from airflow_ft.operators.stream_group import StreamGroupOperator as StreamGroupOperator
    from airflow_ft.pipeline.assets import pipeline_asset as pipeline_asset
    from airflow_ft.pipeline.deliver import deliver as deliver
    from airflow_ft.pipeline.dry_run import dry_run as dry_run
    from airflow_ft.pipeline.dry_run import dry_run_params as dry_run_params
    from airflow_ft.pipeline.dry_run_result import DryRun as DryRun
    from airflow_ft.pipeline.run import run as run
    from airflow_ft.pipeline.spec import PipelineSpec as PipelineSpec
    from airflow_ft.protocol.config import CheckpointConfig as CheckpointConfig
    from airflow_ft.protocol.dead_letters import DeadLetters as DeadLetters
    from airflow_ft.protocol.from_savepoint import FromSavepoint as FromSavepoint
    from airflow_ft.protocol.model import CheckpointingMode as CheckpointingMode
    from airflow_ft.protocol.model import ExternalizedRetention as ExternalizedRetention
    from airflow_ft.protocol.restart import ExponentialDelay as ExponentialDelay
    from airflow_ft.protocol.restart import FailureRate as FailureRate
    from airflow_ft.protocol.restart import FixedDelay as FixedDelay
    from airflow_ft.protocol.restart import NoRestart as NoRestart
    from airflow_ft.protocol.restart import RestartStrategy as RestartStrategy
    from airflow_ft.sensors.barrier import BarrierSensor as BarrierSensor
    from airflow_ft.sensors.checkpoint import CheckpointSensor as CheckpointSensor
    from airflow_ft.sinks.cassandra.spec import CassandraSink as CassandraSink
    from airflow_ft.sinks.delta.spec import DeltaSink as DeltaSink
    from airflow_ft.sinks.files.spec import FilesSink as FilesSink
    from airflow_ft.sinks.hbase.spec import HBaseSink as HBaseSink
    from airflow_ft.sinks.hive.spec import HiveSink as HiveSink
    from airflow_ft.sinks.iceberg.spec import IcebergSink as IcebergSink
    from airflow_ft.sinks.kafka.spec import KafkaSink as KafkaSink
    from airflow_ft.sinks.mysql.spec import MySqlSink as MySqlSink
    from airflow_ft.sinks.paimon.spec import PaimonSink as PaimonSink
    from airflow_ft.sinks.postgres.spec import PostgresSink as PostgresSink
    from airflow_ft.sinks.redis.spec import RedisSink as RedisSink
    from airflow_ft.sinks.sqlite.spec import SqliteSink as SqliteSink
    from airflow_ft.sources.custom import CustomSource as CustomSource
    from airflow_ft.sources.files import FileSource as FileSource
    from airflow_ft.sources.kafka import KafkaSource as KafkaSource
    from airflow_ft.sources.socket import SocketSource as SocketSource

__version__ = "0.1.0"

_WHERE = {
    "BarrierSensor": "airflow_ft.sensors.barrier",
    "CassandraSink": "airflow_ft.sinks.cassandra.spec",
    "CheckpointConfig": "airflow_ft.protocol.config",
    "CheckpointSensor": "airflow_ft.sensors.checkpoint",
    "CheckpointedPipeline": "airflow_ft.operators.pipeline",
    "CheckpointingMode": "airflow_ft.protocol.model",
    "CustomSource": "airflow_ft.sources.custom",
    "DeadLetters": "airflow_ft.protocol.dead_letters",
    "DeltaSink": "airflow_ft.sinks.delta.spec",
    "DisposeSavepointOperator": "airflow_ft.operators.savepoint",
    "DryRun": "airflow_ft.pipeline.dry_run_result",
    "ExponentialDelay": "airflow_ft.protocol.restart",
    "ExternalFolderOperator": "airflow_ft.operators.external",
    "ExternalStageOperator": "airflow_ft.operators.external",
    "ExternalizedRetention": "airflow_ft.protocol.model",
    "FailureRate": "airflow_ft.protocol.restart",
    "FileSource": "airflow_ft.sources.files",
    "FilesSink": "airflow_ft.sinks.files.spec",
    "FixedDelay": "airflow_ft.protocol.restart",
    "FromSavepoint": "airflow_ft.protocol.from_savepoint",
    "InjectBarrierOperator": "airflow_ft.operators.barrier",
    "IcebergSink": "airflow_ft.sinks.iceberg.spec",
    "HBaseSink": "airflow_ft.sinks.hbase.spec",
    "HiveSink": "airflow_ft.sinks.hive.spec",
    "KafkaSink": "airflow_ft.sinks.kafka.spec",
    "KafkaSource": "airflow_ft.sources.kafka",
    "MaintenanceOperator": "airflow_ft.operators.maintenance",
    "MySqlSink": "airflow_ft.sinks.mysql.spec",
    "PostgresSink": "airflow_ft.sinks.postgres.spec",
    "RedisSink": "airflow_ft.sinks.redis.spec",
    "SqliteSink": "airflow_ft.sinks.sqlite.spec",
    "NoRestart": "airflow_ft.protocol.restart",
    "PaimonSink": "airflow_ft.sinks.paimon.spec",
    "PipelineSpec": "airflow_ft.pipeline.spec",
    "RestartStrategy": "airflow_ft.protocol.restart",
    "RestoreSavepointOperator": "airflow_ft.operators.savepoint",
    "SocketSource": "airflow_ft.sources.socket",
    "StopStreamOperator": "airflow_ft.operators.savepoint",
    "StreamGroupOperator": "airflow_ft.operators.stream_group",
    "StreamingPipelineOperator": "airflow_ft.operators.stream",
    "TriggerSavepointOperator": "airflow_ft.operators.savepoint",
    "deliver": "airflow_ft.pipeline.deliver",
    "dry_run": "airflow_ft.pipeline.dry_run",
    "dry_run_params": "airflow_ft.pipeline.dry_run",
    "job": "airflow_ft.jobs.inline.decorator",
    "maintenance_dag": "airflow_ft.operators.maintenance",
    "pipeline_asset": "airflow_ft.pipeline.assets",
    "pipeline_params": "airflow_ft.operators.form",
    "run": "airflow_ft.pipeline.run",
    "savepoint_params": "airflow_ft.operators.savepoint",
}

__all__ = [
    "BarrierSensor",
    "CassandraSink",
    "CheckpointConfig",
    "CheckpointSensor",
    "CheckpointedPipeline",
    "CheckpointingMode",
    "CustomSource",
    "DeadLetters",
    "DeltaSink",
    "DisposeSavepointOperator",
    "DryRun",
    "ExponentialDelay",
    "ExternalFolderOperator",
    "ExternalStageOperator",
    "ExternalizedRetention",
    "FailureRate",
    "FileSource",
    "FilesSink",
    "FixedDelay",
    "FromSavepoint",
    "HiveSink",
    "IcebergSink",
    "InjectBarrierOperator",
    "KafkaSink",
    "KafkaSource",
    "MaintenanceOperator",
    "MySqlSink",
    "NoRestart",
    "PaimonSink",
    "PipelineSpec",
    "PostgresSink",
    "RestartStrategy",
    "RestoreSavepointOperator",
    "SocketSource",
    "SqliteSink",
    "StopStreamOperator",
    "StreamGroupOperator",
    "StreamingPipelineOperator",
    "TriggerSavepointOperator",
    "__version__",
    "deliver",
    "dry_run",
    "dry_run_params",
    "job",
    "maintenance_dag",
    "pipeline_asset",
    "pipeline_params",
    "run",
    "savepoint_params",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    meant = ""
    if not name.startswith("_"):  # those are asked for by programs
        from difflib import get_close_matches

        meant = "".join(f". Did you mean {close!r}?" for close in get_close_matches(name, __all__, 1))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{meant}")
