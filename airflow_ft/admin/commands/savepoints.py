"""`airflow ft savepoint ...`, and `airflow ft stop`, which may take one."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from airflow_ft.admin.commands.common import (
    Size,
    actor,
    command,
    location,
    open_store,
    print_table,
    say,
    signature,
)
from airflow_ft.pipeline import settings
from airflow_ft.pipeline.actions import savepoints as actions
from airflow_ft.pipeline.actions.savepoints import stop as stop_stream
from airflow_ft.pipeline.connections import server_connections
from airflow_ft.pipeline.decision_log import open_configured_store
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.from_savepoint import BEGINNING, Later, claim_mode
from airflow_ft.protocol.lookup import require_known
from airflow_ft.protocol.numbers import count_text
from airflow_ft.spark.request import listed
from airflow_ft.spark.savepoints.converting import Backend
from airflow_ft.spark.savepoints.converting import convert as convert_savepoint
from airflow_ft.spark.savepoints.metadata import Savepoint, listing, read_metadata, verify
from airflow_ft.spark.savepoints.rescaling import rescale as rescale_savepoint
from airflow_ft.spark.savepoints.restoring import restore as restore_savepoint
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.spark.session.submit import jar_files
from airflow_ft.spark.state.meaning import lines
from airflow_ft.spark.state.settings import PARTITIONS, PROVIDER
from airflow_ft.store.events import bytes_text
from airflow_ft.wal.filesystem import filesystem


@command
def trigger(args: Namespace) -> None:
    """`airflow ft savepoint trigger PIPELINE`."""
    with open_store(args) as store:
        uri, taken = take(
            store, args.pipeline, savepoint_folder(args), signature(args, "savepoint trigger"), args.checkpoint
        )
    _say_taken(args, uri, taken)


@command
def rescale(args: Namespace) -> None:
    """`airflow ft savepoint rescale PATH --partitions NUMBER`."""
    _change(args, "rescale", rescale_savepoint, args.partitions, PARTITIONS, str(args.partitions))


@command
def convert(args: Namespace) -> None:
    """`airflow ft savepoint convert PATH --backend rocksdb|hdfs`."""
    backend = Backend(args.backend)
    _change(args, "convert", convert_savepoint, backend, PROVIDER, backend.provider)


def _change(
    args: Namespace, verb: str, change: Callable[..., tuple[str, Savepoint]], to: Any, setting: str, value: str
) -> None:
    """Make a savepoint whose state Spark has changed, and print the setting that goes with it."""
    uri, taken = change(
        location(args.path),
        to,
        savepoint_folder(args),
        signature(args, f"savepoint {verb}"),
        _spark_conf(),
        lambda line: print(line, file=sys.stderr),  # noqa: T201
    )
    _say_taken(args, uri, taken)
    if args.output not in ("json", "yaml"):
        say(f'to restore it, set spark_conf={{"{setting}": "{value}"}} on the pipeline')


def _spark_conf() -> dict[str, str]:
    """Return the configured Spark settings, with the configured jars, which may bring S3A."""
    conf = dict(settings.spark_conf())
    jars = [*listed(conf.get("spark.jars", "")), *jar_files(listed(settings.spark_jars()))]
    return {**conf, "spark.jars": ",".join(jars)} if jars else conf


def _say_taken(args: Namespace, uri: str, taken: Savepoint) -> None:
    if args.output in ("json", "yaml"):
        print_table([_row(uri, taken)], args.output)
    else:
        say(actions.taken_text(uri, taken))


@command
def list(args: Namespace) -> None:
    """`airflow ft savepoint list`."""
    folder = savepoint_folder(args)
    if args.dir and not filesystem(folder).exists(folder):
        raise ConfigurationError(
            f"the folder {folder} does not exist.", code="folder_missing", remedy="Correct --dir.", path=folder
        )
    print_table([_row(uri, found) for uri, found in listing(folder)], args.output)


@command
def show(args: Namespace) -> None:
    """Run `airflow ft savepoint show PATH`: print the whole metadata, after verifying its files."""
    uri = location(args.path)
    found = read_metadata(uri)
    verify(uri, found)
    if args.output in ("json", "yaml"):
        data: dict[str, Any] = found.to_json()
        data["files"] = len(found.files)
        print_table([data], args.output)
        return
    for line in _lines(uri, found):
        say(line)


@command
def restore(args: Namespace) -> None:
    """`airflow ft savepoint restore PATH`."""
    claim = claim_mode(args.claim_mode)
    uri = BEGINNING if args.path == BEGINNING else location(args.path)
    found = None if uri == BEGINNING else read_metadata(uri)
    name = args.pipeline or (found.pipeline if found else "")
    if not name:
        raise ConfigurationError(
            f"{BEGINNING!r} needs the name of a pipeline.",
            code="argument_missing",
            remedy="Add --pipeline NAME.",
            argument="--pipeline",
        )
    later = Later(args.later)
    by = actor(args, "savepoint restore")
    with closing(open_configured_store(args.store, server_connections)) as store:
        if found is None:
            require_known(store, name, " For another decision log, add --store.")
            by.sure(f"Let {name} read its sources from the beginning? It delivers all of their rows again.")
        else:
            again = " Later rows are delivered again." if later is Later.WRITE_AGAIN else ""
            if args.rename:
                again += f" {found.pipeline} gets that name, and its old name stops working."
            by.sure(
                f"Let {name} continue from checkpoint {found.number} of {found.pipeline},"
                f" taken at {found.taken_at}?{again}"
            )
        restored = restore_savepoint(
            store,
            uri,
            by.participants,
            by.worker,
            by.signature,
            pipeline=name,
            wal_root=args.wal_root or settings.wal_root(),
            later=later,
            claim=claim,
            allow_non_restored_state=bool(args.allow_non_restored_state),
            allow_changed_state=bool(args.allow_changed_state),
            rename=args.rename,
            lease_seconds=by.lease_seconds,
        )
    for line in actions.restored_texts(restored, name, later):
        say(line)


@command
def dispose(args: Namespace) -> None:
    """`airflow ft savepoint dispose PATH`."""
    actions.dispose(actor(args, "savepoint dispose"), location(args.path))


def savepoint_folder(args: Namespace) -> str:
    """Return where savepoints go, as a URI or an absolute path."""
    return location(args.dir or settings.savepoint_dir())


def _row(uri: str, found: Savepoint | None) -> dict[str, Any]:
    if found is None:
        nothing = dict.fromkeys(("pipeline", "checkpoint", "taken", "by", "operators", "size"))
        return {"savepoint": uri, **nothing, "by": "unfinished or damaged"}
    return {
        "savepoint": uri,
        "pipeline": found.pipeline,
        "checkpoint": found.number,
        "taken": found.taken_at,
        "by": found.taken_by,
        "operators": len(found.operators),
        "size": Size(found.bytes),
    }


def _lines(uri: str, found: Savepoint) -> Iterator[str]:
    yield f"{uri}: complete, {count_text(len(found.files), 'file')}, {bytes_text(found.bytes)}"
    yield f"pipeline    {found.pipeline} of the decision log {found.installation}"
    behind = ", state restored or reset after it" if found.restored else ""
    yield (
        f"checkpoint  {found.number}, Spark's micro-batch {found.batch}"
        + (", drained" if found.drained else "")
        + behind
    )
    yield f"taken       {found.taken_at:%Y-%m-%d %H:%M:%S}Z by {found.taken_by}"
    yield f"versions    {', '.join(f'{name} {each}' for name, each in found.versions.items())}"
    if job := found.spec.get("job"):
        yield f"job         {job}"
    if found.rows:
        yield f"rows        {', '.join(f'{sink} {rows:,}' for sink, rows in found.rows.items())}, of the checkpoint"
    for source, position in found.positions.items():
        yield f"source      {source}: {position}"
    if found.operators:
        yield f"backend     {found.backend}"
    for operator in found.operators:
        size = bytes_text(operator.bytes)
        name = f"{operator.id} {operator.uid} ({operator.name})" if operator.uid else f"{operator.id} {operator.name}"
        yield f"operator    {name}: {count_text(operator.partitions, 'partition')}, {size}"
        for state, types in operator.states.items():
            yield f"  {state}: {types}"
        for line in lines(operator.meaning):
            yield f"  {line}"


@command
def stop(args: Namespace) -> None:
    """`airflow ft stop PIPELINE`."""
    if args.dir and not args.savepoint:
        raise ConfigurationError(
            "--dir is given, but no savepoint is taken without --savepoint. Nothing was stopped.",
            code="arguments_conflict",
            remedy="Add --savepoint, or remove --dir.",
            pipeline=args.pipeline,
            argument="--dir",
        )
    with open_store(args) as store:
        stop_stream(
            actor(args, "stop"),
            store,
            args.pipeline,
            at_once=bool(args.now),
            drain=bool(args.drain),
            savepoint_dir=savepoint_folder(args) if args.savepoint else "",
            wait=float(args.wait),
        )
