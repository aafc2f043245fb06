"""Make a new savepoint from one: the state is changed in a copy, and nothing else is touched.

The original is read as a whole first, and is not changed. A separate Spark driver works on the copy; if it fails, the
copy is deleted. A crash leaves a folder without `_metadata`: `airflow ft savepoint list` shows it as unfinished, and
it cannot be restored. The pipeline is not involved: `airflow ft savepoint restore` gives it the new state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from airflow_ft.clients.bucket_limits import check_bucket_spark
from airflow_ft.clients.buckets import BucketPlace, BucketSettings, is_bucket, learn, renew
from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.protocol.model import RunKey
from airflow_ft.spark.private import PROPERTIES, private_folder, write
from airflow_ft.spark.process import Driver, die_with_parent
from airflow_ft.spark.request import StageRequest, listed
from airflow_ft.spark.savepoints.metadata import SPARK, Savepoint, verify
from airflow_ft.spark.savepoints.taking import finish, new_folder, removed_on_error
from airflow_ft.spark.session import s3a
from airflow_ft.spark.session.connector import installed_version
from airflow_ft.spark.session.home import spark_home
from airflow_ft.spark.session.submit import MAIN, RESULT, environment, properties, settings, submit
from airflow_ft.spark.state.catching_up import is_planned
from airflow_ft.spark.state.locations import SparkLocation, copy_location
from airflow_ft.spark.state.meaning import warn_of_later_spark
from airflow_ft.wal.filesystem import filesystem

_MOST_LISTED = 500
_KEYS = "buckets.json"
# The line that a person would look for; the frames of a stack trace are none.
_REASON = re.compile(r"^(?!at ).*(?:Error|Exception)")


def changed_copy(
    uri: str, savepoint: Savepoint, folder: str, by: str, change: Callable[[SparkLocation], SparkLocation]
) -> tuple[str, Savepoint]:
    """A new savepoint in `folder`, and its URI: that of `uri`, with its location as `change` leaves it.

    `change` gets the copy, and returns it with the batch at which it ends then. ConfigurationError for a savepoint that
    has to catch up, WalCorruptError for a damaged one, and whatever `change` raises. Then nothing is left.
    """
    files = filesystem(folder)
    if is_planned(savepoint.location(uri).position(savepoint.batch)):
        raise ConfigurationError(
            f"someone took the savepoint {uri} between a restore of the pipeline and its next checkpoint.",
            code="restore_unfinished",
            remedy="Run the pipeline until it completes a checkpoint with new rows. Then take another savepoint.",
            path=uri,
        )
    verify(uri, savepoint)
    warn_of_later_spark(savepoint.location(uri), installed_version())
    id, target = new_folder(folder, savepoint.pipeline, savepoint.number)
    with removed_on_error(folder, target, savepoint.pipeline):
        files.make_folder(target)
        changed = change(copy_location(savepoint.location(uri), files.uri(target, SPARK)))
        metadata = replace(savepoint, id=id, taken_by=f"{by}, from {uri}")
        return target, finish(target, changed, metadata)


def drive(
    main: str,
    arguments: tuple[str | int, ...],
    what: str,
    pipeline: str,
    conf: Mapping[str, str],
    on_line: Callable[[str], None],
    *places: str,
) -> None:
    """Run `main` ("module:function") in a separate Spark driver, which cannot outlive this thread.

    `what` names the work in the error. `conf` are settings of Spark, `on_line` receives the lines that it writes.
    `places`: URIs that it reads or writes. For buckets it gets keys.

    Raises:
        ConfigurationError: two connections lead to one bucket.
        StageError: the driver failed.
    """
    _, _, function = main.partition(":")
    buckets = _buckets(places)
    jars: list[str] = []
    if buckets:
        for uri in filter(is_bucket, places):
            check_bucket_spark(uri, "local[*]", conf)
        jars = s3a.needed(spark_home(), listed(conf.get("spark.jars", "")), conf)
    with private_folder() as folder:
        request = StageRequest(
            pipeline=pipeline,
            run=RunKey("savepoint", function),
            epoch=0,
            attempt=0,
            store_url="",
            wal_root=str(folder),
            job=main,
            sinks=("none",),
            master="local[*]",
            conf=dict(conf),
            jars=tuple(jars),
            buckets=tuple(each.to_json() for each in buckets.values()),
        )
        write(folder / PROPERTIES, properties(settings(request, folder)))
        write(folder / _KEYS, json.dumps([[str(place), each.to_json()] for place, each in buckets.items()]))
        text = f"from {__name__} import run\n\nrun({main!r}, {arguments!r}, {str(folder / _KEYS)!r})\n"
        write(folder / MAIN, text)
        hide = request.redactor()
        reason = last = ""

        def said(text: str) -> None:
            nonlocal reason, last
            line = hide(text)
            on_line(line)
            last = line.strip() or last
            reason = last if _REASON.search(last) else reason

        driver = Driver(submit(folder, str(folder / MAIN)), environment(request))
        if driver.wait(said, folder / RESULT):
            raise StageError(
                f"Spark could not {what}: {(reason or last or 'it wrote no output')[:_MOST_LISTED]}",
                code="state_not_rewritten",
                pipeline=pipeline,
                remedy="Read Spark's lines above. The savepoint is unchanged.",
            )


def run(main: str, arguments: Sequence[str | int], keys: str) -> None:
    """In the driver: let Spark reach the buckets whose keys are in a file, delete that, and run the function."""
    from pyspark.sql import SparkSession

    die_with_parent()
    found = json.loads(Path(keys).read_text(encoding="utf-8"))
    Path(keys).unlink()
    for uri, values in found:
        settings_of_bucket = BucketSettings(**values)
        learn(settings_of_bucket)
        s3a.reach(SparkSession.builder.getOrCreate(), BucketPlace.of(uri), settings_of_bucket)
    module, _, function = main.partition(":")
    getattr(import_module(module), function)(*arguments)


def _buckets(places: Sequence[str]) -> dict[BucketPlace, BucketSettings]:
    """Return a place in each bucket, and the settings for it. S3A has one user's keys for a bucket."""
    found: dict[str, BucketPlace] = {}
    for place in map(BucketPlace.of, filter(is_bucket, places)):
        other = found.setdefault(place.bucket, place)
        if other.conn_id != place.conn_id:
            raise ConfigurationError(
                f"{other} and {place} name one bucket with two connections.",
                code="arguments_conflict",
                remedy="Name both folders with the same connection.",
                path=str(place),
                other=str(other),
            )
    return {place: renew(place) for place in found.values()}
