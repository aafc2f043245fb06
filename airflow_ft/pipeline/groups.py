"""The streams of a group, checked when the DAG is parsed: what one JVM has once must be equal for all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from airflow_ft.clients.buckets import BucketPlace, is_bucket
from airflow_ft.pipeline.spec import PipelineSpec
from airflow_ft.protocol.arguments import check_type, is_template
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sources import SocketSource
from airflow_ft.spark.request import listed
from airflow_ft.spark.session.groups import is_of_session, two_connections, unequal_setting

MOST = 20
"""Most streams in a group: larger groups were not tried."""
_EQUAL: tuple[tuple[str, Callable[[PipelineSpec], Hashable]], ...] = (
    ("spark_master", lambda spec: spec.spark_master),
    ("jars", lambda spec: None if spec.jars is None else listed(spec.jars)),
    ("packages", lambda spec: tuple(spec.packages)),
)
"""What must be equal, and how it is compared."""


def check_group(streams: Any) -> tuple[PipelineSpec, ...]:
    """Return the specifications of a group of streams.

    Raises:
        ConfigurationError: they are not streams, or cannot share one JVM.
    """
    remedy = 'Give a list: streams=[PipelineSpec(pipeline="orders", streaming=True, ...), ...].'
    check_type("streams", streams, Sequence, remedy)
    for spec in streams:
        check_type("streams", spec, PipelineSpec, remedy)
        _check_stream(spec)
    specs = tuple(streams)
    if not specs:
        raise ConfigurationError(
            "streams is empty.", code="argument_missing", remedy="Give at least one PipelineSpec.", argument="streams"
        )
    if len(specs) > MOST:
        raise ConfigurationError(
            f"the group has {len(specs)} streams. At most {MOST} share a driver.",
            code="argument_invalid",
            remedy="Divide them among several groups.",
            argument="streams",
        )
    names = [(spec.pipeline, spec.suffix) for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(
                f"two streams of the group have the pipeline {name[0]!r}. The second would find nothing left to read.",
                code="pipeline_duplicated",
                remedy="Give each stream its own pipeline= or suffix=.",
                pipeline=name[0],
            )
    _check_jvm(specs)
    _check_buckets(specs)
    _check_sockets(specs)
    return specs


def _check_stream(spec: PipelineSpec) -> None:
    if not spec.streaming:
        raise ConfigurationError(
            "a group runs streams, but this specification is of a scheduled pipeline.",
            code="arguments_conflict",
            remedy="Add streaming=True to PipelineSpec, or use CheckpointedPipeline.",
            pipeline=spec.pipeline,
            argument="streaming",
        )
    for name, is_given in (("keep_session", bool(spec.keep_session)), ("standby", spec.standby)):
        if not is_given:
            continue
        raise ConfigurationError(
            f"{name} is for a stream with a JVM of its own, but the streams of a group share a JVM.",
            code="arguments_conflict",
            remedy=f"Remove {name}.",
            pipeline=spec.pipeline,
            argument=name,
        )


def _check_jvm(specs: Sequence[PipelineSpec]) -> None:
    first = specs[0]
    for name, of in _EQUAL:
        if unequal := [spec.pipeline for spec in specs if of(spec) != of(first)]:
            raise unequal_setting(name, unequal)
    names = {name for spec in specs for name in spec.spark_conf if not is_of_session(name)}
    for name in sorted(names):
        given = first.spark_conf.get(name)
        if unequal := [spec.pipeline for spec in specs if spec.spark_conf.get(name) != given]:
            raise unequal_setting(name, unequal)


def _check_buckets(specs: Sequence[PipelineSpec]) -> None:
    found: dict[str, str] = {}
    for spec in specs:
        if spec.wal_root and not is_template(spec.wal_root) and is_bucket(spec.wal_root):
            place = BucketPlace.of(spec.wal_root)
            if found.setdefault(place.bucket, place.conn_id) != place.conn_id:
                raise two_connections(place.bucket, [spec.pipeline])


def _check_sockets(specs: Sequence[PipelineSpec]) -> None:
    """Refuse one socket for two streams: Spark gives both readers one name, so a closed socket would be overlooked."""
    found: set[tuple[str, object]] = set()
    for spec in specs:
        for name, source in spec.sources.items():
            if not isinstance(source, SocketSource):
                continue
            if (place := (source.host, source.port)) in found:
                raise ConfigurationError(
                    f"source {name!r} reads the socket {source.host}:{source.port}, as another stream of the group.",
                    code="arguments_conflict",
                    remedy="Run one of the two streams in a task of its own.",
                    pipeline=spec.pipeline,
                    source=name,
                )
            found.add(place)
