"""Checks of a pipeline's declaration, as soon as its DAG is parsed. `PipelineSpec` calls them with its fields."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import timedelta
from inspect import isclass
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

from airflow_ft.clients.bucket_limits import check_bucket_spark, refuse_for_buckets
from airflow_ft.clients.buckets import BucketPlace, is_bucket
from airflow_ft.protocol.arguments import (
    check_job,
    check_key,
    check_known,
    check_place,
    check_plain,
    check_text,
    check_texts,
    check_type,
    is_late_anywhere,
    is_resolved_later,
    is_template,
    kind_of,
    refuse_object,
    shown,
    wrong,
)
from airflow_ft.protocol.config import check_name
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.inline_job import InlineJob
from airflow_ft.protocol.kinds import LONGEST
from airflow_ft.protocol.model import CheckpointingMode, Promise
from airflow_ft.protocol.planning import participant_name
from airflow_ft.protocol.position import Position, check_bounds
from airflow_ft.sinks.base.places import lacking
from airflow_ft.sinks.registry import require_clients, system
from airflow_ft.sources import FileSource, KafkaSource
from airflow_ft.sources.modes import check_mode
from airflow_ft.sources.names import is_pattern, place_of
from airflow_ft.spark.session.masters import check_conf, check_master

if TYPE_CHECKING:
    from airflow_ft.protocol.sink_spec import SinkSpec
    from airflow_ft.sources import Source

_SINK = ("kind", "conn_id", "strategy", "promise", "at_least_once", "settings")
_FILES = "files"
_SOURCE = ("conn_id", "to_json", "read")
_OF_JOBS = (
    *("job", "sources", "job_args", "dead_letters", "optional_sinks", "spark_master", "spark_conf", "jars", "packages"),
    *("keep_session", "standby", "overlap", "streaming", "from_savepoint"),
)


def check_inputs(job: object, sources: Mapping[str, Source], job_args: Mapping[str, Any]) -> None:
    """Check the job, its sources and its arguments."""
    if not is_template(job):
        check_job(job)
    _check_specs("source", sources, _SOURCE, 'KafkaSource(topics=["orders"])')
    if not sources:
        raise ConfigurationError(
            "the pipeline has no sources.",
            code="argument_missing",
            remedy='Declare at least one, such as sources={"orders": KafkaSource(topics=["orders"])}.',
            argument="sources",
        )
    _check_groups(sources)
    check_type("job_args", job_args, Mapping, 'Give a dictionary, such as {"limit": 100}.')
    for name in job_args:
        check_key("job_args", name)
    check_plain("job_args", job_args)
    if isinstance(job, InlineJob):  # a module is not imported here: its job is asked in the driver
        job.check_arguments(list(job_args))
        job.check_schemas()
        job.check_sources(sources)


def check_position(position: object, fields: Mapping[str, Any]) -> None:
    """Check a position, as far as it is known, and that no other of the `fields` concerns a job."""
    if given := [name for name in _OF_JOBS if fields[name]]:
        raise ConfigurationError(
            f"position and {', '.join(given)} exclude each other: with a position no job of Spark is run.",
            code="arguments_conflict",
            remedy=f"Remove position, or remove {', '.join(given)}.",
            arguments=["position", *given],
        )
    check_bounds(position)
    if not is_late_anywhere(position):
        Position.of(position)


def check_varying_position(position: object, pipeline: str) -> None:
    """Refuse a position of a DAG that is the same in each run: rows of an equal position are delivered once."""
    if position is None or is_late_anywhere(position):
        return
    raise ConfigurationError(
        f"position is {shown(position)} in each run, so only the first run would deliver rows.",
        code="position_constant",
        remedy='Write what names the rows of a run, such as position="{{ ds }}" or "{{ params.snapshot }}".',
        pipeline=pipeline,
        argument="position",
    )


def check_interval(position: object, timetable: object, pipeline: str) -> None:
    """Refuse the interval of an Airflow run as position where each run's interval is empty."""
    kind = type(timetable).__name__
    may_be_empty = kind in ("CronTriggerTimetable", "DeltaTriggerTimetable")
    if not _is_interval_of_run(position) or not may_be_empty or getattr(timetable, "interval", True):
        return
    data = kind.replace("Trigger", "DataInterval")
    raise ConfigurationError(
        f"position is the interval of the run, which is empty with this schedule ({kind}): its start is its end.",
        code="position_empty",
        remedy=f"Write the DAG's schedule as {data}(...) from airflow.timetables.interval.",
        pipeline=pipeline,
        argument="position",
        timetable=kind,
    )


def check_order_of_runs(position: object, max_active_runs: int, pipeline: str, suffix: object) -> None:
    """Refuse an interval with Jinja as position if several runs may be active, because a later one may go first.

    Jinja in the pipeline's name allows it: then each run may have its own pipeline.
    """
    varies = isinstance(position, Mapping) and {*position} == {"start", "end"} and is_late_anywhere(position)
    if max_active_runs == 1 or not varies or is_late_anywhere([pipeline, suffix]):
        return
    raise ConfigurationError(
        f"position is an interval with Jinja, and {max_active_runs} runs of the DAG may be active at once. If a later"
        " run goes first, the interval of an earlier one can no longer be delivered.",
        code="argument_invalid",
        remedy="Give the DAG max_active_runs=1. Do not backfill it beside its schedule: use catchup=True.",
        pipeline=pipeline,
        argument="max_active_runs",
        value=max_active_runs,
    )


def _is_interval_of_run(position: object) -> bool:
    bounds = ("start", "end")
    return isinstance(position, Mapping) and all(f"data_interval_{name}" in str(position.get(name)) for name in bounds)


def check_split(job: object, sinks: Mapping[str, SinkSpec], optional: Collection[str]) -> None:
    """Check the split of a job of the DAG file, which is known; the driver checks a module after the import."""
    apart = [name for name in sinks if name not in optional]
    if isinstance(job, InlineJob):
        job.check_split(apart, optional)
    if isinstance(job, InlineJob) and not job.divides and len(apart) > 1:
        raise ConfigurationError(
            f"the job {job.reference} has no split(batch), but several sinks: {', '.join(apart)}.",
            code="split_missing",
            remedy="Write a class below @job with transform(self, spark, sources) and split(self, batch), which"
            " returns {sink name: DataFrame}.",
            job=job.reference,
            sinks=apart,
        )


def check_places(wal_root: str | None, **texts: str | None) -> None:
    """Check the places that a pipeline names: `wal_root`, and other `texts` by their arguments' names."""
    for name, text in {**texts, "wal_root": wal_root}.items():
        check_text(name, text, optional=True)
    master = texts.get("spark_master")
    check_master(master if isinstance(master, str) else None)
    if not wal_root or is_template(wal_root):
        return
    check_place("wal_root", wal_root)
    if is_bucket(wal_root):
        BucketPlace.of(wal_root)


def check_log_in_bucket(wal_root: str | None, master: str | None, conf: Mapping[str, Any], **given: object) -> None:
    """Check what does not go together with a log in a bucket: the Spark master, its settings and `given` arguments."""
    if not wal_root or is_template(wal_root):
        return
    refuse_for_buckets(wal_root, **given)
    known = "" if master is None or is_template(master) or master.startswith("conn:") else master
    # A value of the provider's configuration has its place there instead; `resolve` checks the value.
    said = {
        name: value
        for name, value in conf.items()
        if isinstance(value, str) and not is_template(value) and not value.startswith("[")
    }
    check_bucket_spark(wal_root, known, said)


def check_spark(
    spark_conf: Mapping[str, Any], jars: str | Sequence[str] | None, packages: Sequence[str], keep_session: object
) -> None:
    """Check the settings that start Spark."""
    check_type("spark_conf", spark_conf, Mapping, 'Give a dictionary, such as {"spark.driver.memory": "2g"}.')
    for name, value in dict[str, Any](spark_conf).items():
        check_key("spark_conf", name)
        if isinstance(value, str):
            refuse_object(f"spark_conf[{name!r}]", value)
        elif not is_resolved_later(value):  # it may be a secret: show only its type
            remedy = f'Give text: {{"{name}": "..."}}.'
            raise wrong(f"spark_conf[{name!r}]", kind_of(value), remedy)
    check_conf(spark_conf)
    if isinstance(jars, str):
        refuse_object("jars", jars)
    elif jars is not None and not is_resolved_later(jars):
        check_texts("jars", jars)
    check_texts("packages", packages)
    if keep_session is not None and (not isinstance(keep_session, timedelta) or keep_session < timedelta(0)):
        raise wrong("keep_session", shown(keep_session), "Give timedelta(minutes=15), or timedelta(0) for none.")


def check_late_after(late_after: object) -> None:
    """Check the time after which a pipeline is late."""
    if late_after is not None and not (isinstance(late_after, timedelta) and timedelta(0) < late_after <= LONGEST):
        raise wrong(
            "late_after",
            shown(late_after),
            "Give a timedelta of at most 100 years, such as timedelta(hours=26) for a daily pipeline. Or leave out"
            " late_after.",
        )


def check_sinks(sinks: Mapping[str, SinkSpec], optional_sinks: Sequence[str]) -> None:
    """Check the sinks, and which of them a job may leave out."""
    _check_specs("sink", sinks, _SINK, 'MySqlSink(table="shop.orders")')
    check_texts("optional_sinks", optional_sinks)
    check_known("optional_sinks", tuple(optional_sinks))
    if unknown := sorted(set(optional_sinks) - set(sinks)):
        raise _no_sink("optional_sinks", unknown, sinks)


def check_dead_letters(sinks: Mapping[str, SinkSpec], optional: frozenset[str]) -> None:
    """Check the sink of dead letters, which is among `optional`."""
    if optional.issuperset(sinks):
        raise ConfigurationError(
            f"the pipeline has only the sink of dead letters: {', '.join(sorted(optional))}.",
            code="argument_missing",
            remedy="Declare a sink for the other rows.",
            argument="sinks",
        )
    if unknown := sorted(optional.difference(sinks)):
        raise _no_sink("dead_letters", unknown, sinks)


def check_connections(sinks: Mapping[str, SinkSpec], wal_root: str | None) -> None:
    """Check that each sink's connection is known when a DAG is parsed, and that all clients are installed."""
    for name, sink in sinks.items():
        if is_resolved_later(sink.conn_id):
            raise ConfigurationError(
                "its connection id is known only in a run, but the names of tasks contain it.",
                code="value_known_too_late",
                remedy="Write the id itself as conn_id. If it must vary, use the single operators.",
                sink=name,
                argument="conn_id",
            )
    kinds = {name: system(sink.kind) for name, sink in sinks.items()}
    more = lacking(wal_root) if isinstance(wal_root, str) and is_bucket(wal_root) else {}
    for name, sink in sinks.items():
        more |= kinds[name].lacking(sink)
    require_clients(kinds.values(), more=more)


def check_folders(sources: Mapping[str, Source], sinks: Mapping[str, SinkSpec]) -> None:
    """Refuse a sink's folder that is, contains or lies in a folder that the pipeline reads."""
    read = {name: source for name, source in sources.items() if isinstance(source, FileSource)}
    written = {name: sink for name, sink in sinks.items() if sink.kind == _FILES}
    for (source, each), (name, sink) in product(read.items(), written.items()):
        folder = system(sink.kind).target(sink)
        if folder is None or is_template(folder) or is_template(each.path) or is_pattern(each.path):
            continue
        one, other = place_of(each.path), place_of(folder)
        if one[: len(other)] == other or other[: len(one)] == one:
            raise ConfigurationError(
                f"sink {name!r} writes into {folder}, and source {source!r} reads {each.path}. The pipeline would read"
                " its own output, or fail on the folders in it.",
                code="target_is_source",
                remedy="Name a folder for the sink that is neither in the source's folder nor above it.",
                source=source,
                sink=name,
                path=folder,
            )


def check_targets(sinks: Mapping[str, SinkSpec]) -> None:
    """Refuse two sinks that write by key into one table: a key that comes from both would have no defined value.

    Also refuse two sinks of a participant that has one table, and two sinks of one folder.
    """
    seen: dict[tuple[str, Any], str] = {}
    for name, sink in sinks.items():
        of = system(sink.kind)
        by_key = of.by_key or sink.promise is Promise.IDEMPOTENT
        if not by_key and sink.conn_id:
            continue
        target = of.target(sink)
        if target is None:
            continue
        is_folder = sink.kind == _FILES  # a folder takes one sink, under any name
        key = (_FILES, place_of(target)) if is_folder else (participant_name(sink), target)
        other = seen.setdefault(key, name)
        if other != name:
            raise ConfigurationError(
                f"sinks {other!r} and {name!r} write into the same {of.place}, {shown(target)}."
                + (" A key that comes from both would have no defined value." if by_key else ""),
                code="target_duplicated",
                remedy="Keep one of the sinks, and unite the rows in the job: first.unionByName(second).",
                sinks=[other, name],
                target=target,
            )


def check_for_streams(given: Sequence[str], *, streaming: bool) -> None:
    """ConfigurationError when a scheduled pipeline has settings of streams: `given`, by their names."""
    if given and not streaming:
        raise ConfigurationError(
            f"CheckpointConfig.{given[0]} is for streams, but this pipeline is scheduled.",
            code="needs_streaming",
            remedy=f"Add streaming=True, or leave {given[0]} out. The checkpoints of a scheduled run follow from"
            " its schedule and the limits of its sources (max_offsets_per_trigger, max_files_per_trigger, ...).",
            argument=given[0],
        )


def drains_as_stream() -> ConfigurationError:
    """Return what to raise where a stream is to drain in each run."""
    return ConfigurationError(
        "CheckpointConfig.drain is for scheduled pipelines, but this one is a stream.",
        code="arguments_conflict",
        remedy="Leave drain out, and stop the stream with `airflow ft stop --drain`.",
        arguments=["drain", "streaming"],
    )


def check_reading(mode: CheckpointingMode, sources: Mapping[str, Source], *, streaming: bool) -> None:
    """ConfigurationError when the mode cannot be kept with these sources, or by the run of a schedule."""
    if mode is CheckpointingMode.AT_MOST_ONCE and not streaming:
        raise ConfigurationError(
            f"mode {mode} is for streams. Each run of a scheduled pipeline would start at the end of its sources"
            " and read nothing.",
            code="needs_streaming",
            remedy="Add streaming=True. Or leave mode out: each run then continues where the last one ended.",
            argument="mode",
            value=mode.value,
        )
    for name, source in sources.items():
        check_mode(name, source, mode)


def _no_sink(argument: str, unknown: Sequence[str], sinks: Mapping[str, SinkSpec]) -> ConfigurationError:
    names = ", ".join(unknown)
    what = f"{argument} names {names}, which is not a sink of the pipeline."
    return wrong(argument, names, f"Choose from the sinks of the pipeline: {', '.join(sinks)}.", what=what)


def _check_specs(kind: str, given: object, attributes: tuple[str, ...], example: str) -> None:
    check_type(f"{kind}s", given, Mapping, f'Give a dictionary by name: {{"orders": {example}}}.')
    assert isinstance(given, Mapping)
    for name, spec in given.items():
        check_name(kind, name)
        if isclass(spec) or not is_dataclass(spec) or not all(hasattr(spec, attribute) for attribute in attributes):
            why = f", which is not a {kind}"
            raise wrong(f"{kind}s[{name!r}]", shown(spec), f"Give a {kind}, such as {example}.", why=why)


def _check_groups(sources: Mapping[str, Source]) -> None:
    """Raise ConfigurationError if two sources commit offsets of the same topic to one group.

    The committed offset would be that of either source by chance, and consumers that start at the group, or monitor
    it, would rely on it. Topics of a pattern are found at run time and are not checked.
    """
    kafka = {name: each for name, each in sources.items() if isinstance(each, KafkaSource)}
    committing = {name: each for name, each in kafka.items() if each.group_id and each.commit_offsets}
    for (one, first), (other, second) in combinations(committing.items(), 2):
        both = sorted(set(first.topics) & set(second.topics))
        if both and (first.conn_id, first.group_id) == (second.conn_id, second.group_id):
            raise ConfigurationError(
                f"sources {one!r} and {other!r} read {both[0]!r}, and group {first.group_id!r} can follow only one.",
                code="group_shared",
                remedy="Give each source its own group_id, or set commit_offsets=False for one of them.",
                sources=[one, other],
                topic=both[0],
                group=first.group_id,
            )
