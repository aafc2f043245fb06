"""What a pipeline with its log in a bucket cannot do yet, refused as early as it is known."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_ft.clients.buckets import BucketPlace, is_bucket
from airflow_ft.protocol.errors import ConfigurationError

_ELSEWHERE = "Give a local folder or hdfs://NAMENODE:PORT/PATH"
_TRIED = re.compile(r"local(\[[^\]]*\])?|spark://.+|yarn|k8s://.+")
_OURS = ("spark.redaction.regex", "spark.redaction.string.regex", "spark.hadoop.fs.s3a.impl")
"""Spark settings that would show the keys, or replace the client."""


def refuse_for_buckets(wal_root: str, **given: object) -> None:
    """Raise ConfigurationError for arguments of a pipeline, by name, if its log is in a bucket and they are given."""
    if is_bucket(wal_root) and (wrong := sorted(name for name, value in given.items() if value)):
        raise ConfigurationError(
            f"wal_root is in a bucket, where {', '.join(wrong)} cannot be used yet.",
            code="log_in_bucket",
            remedy=f"{_ELSEWHERE} as wal_root, or leave {', '.join(wrong)} out.",
            arguments=["wal_root", *wrong],
        )


def check_bucket_spark(wal_root: str, master: str, conf: Mapping[str, str]) -> None:
    """Raise ConfigurationError for a Spark master that was not tried, or a setting that would change how Spark reaches
    the bucket.

    `master`: "" if only `conf` may name one.
    """
    if not is_bucket(wal_root):
        return
    found = master or conf.get("spark.master", "")
    if found and not _TRIED.fullmatch(found):
        raise ConfigurationError(
            f"wal_root is in a bucket, which is untested with the Spark master {found!r}.",
            code="log_in_bucket",
            remedy=f'Give "local[*]", "spark://HOST:PORT", "yarn" or "k8s://https://HOST:PORT". Or: {_ELSEWHERE}.',
            arguments=["wal_root", "spark_master"],
            value=found,
        )
    bucket = f"spark.hadoop.fs.s3a.bucket.{BucketPlace.of(wal_root).bucket}."
    for name in conf:
        if name in _OURS or name.startswith(bucket):
            raise ConfigurationError(
                f"the Spark setting {name} would change how Spark reaches the write-ahead log, or show its keys.",
                code="spark_setting_unsafe",
                remedy=f"Remove {name} from spark_conf. airflow-ft takes the settings from the connection in wal_root.",
                setting=name,
            )
