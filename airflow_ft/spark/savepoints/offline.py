"""Make a new savepoint from one: the state is changed in a copy, and nothing else is touched.

The original is read as a whole first, and is not changed. A separate Spark driver works on the copy; if it fails, the
copy is deleted. A crash leaves a folder without `_metadata`: `airflow ft savepoint list` shows it as unfinished, and
it cannot be restored. The pipeline is not involved: `airflow ft savepoint restore` gives it the new state.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.protocol.model import RunKey
from airflow_ft.spark.private import PROPERTIES
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.savepoints.metadata import SPARK, Savepoint, verify
from airflow_ft.spark.savepoints.taking import finish, new_folder, removed_on_error
from airflow_ft.spark.session.submit import MAIN, environment, properties, settings, submit
from airflow_ft.spark.state.catching_up import is_planned
from airflow_ft.spark.state.locations import SparkLocation, copy_location
from airflow_ft.wal.filesystem import filesystem

_MOST_LISTED = 500
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
            f"someone took the savepoint {uri} from a restored pipeline before its next run had rebuilt the state.",
            code="restore_unfinished",
            remedy="Trigger a run of that pipeline. Then take another savepoint.",
            path=uri,
        )
    verify(uri, savepoint)
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
) -> None:
    """Run `main` ("module:function") in a separate Spark driver.

    `what` names the work in the error. `conf` are settings of Spark, `on_line` receives the lines that it writes.

    Raises:
        StageError: the driver failed.
    """
    module, _, function = main.partition(":")
    with tempfile.TemporaryDirectory(prefix="airflow-ft-savepoint-") as private:
        request = StageRequest(
            pipeline=pipeline,
            run=RunKey("savepoint", function),
            epoch=0,
            attempt=0,
            store_url="",
            wal_root=private,
            job=main,
            sinks=("none",),
            master="local[*]",
            conf=dict(conf),
        )
        folder = Path(private)
        (folder / PROPERTIES).write_text(properties(settings(request, folder)))
        program = folder / MAIN
        program.write_text(f"from {module} import {function}\n\n{function}(*{arguments!r})\n")
        with subprocess.Popen(
            submit(folder, str(program)),
            env=environment(request),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        ) as driver:
            assert driver.stdout is not None
            reason = last = ""
            for line in driver.stdout:
                on_line(line.rstrip("\n"))
                last = line.strip() or last
                reason = last if _REASON.search(last) else reason
        if driver.returncode:
            raise StageError(
                f"Spark could not {what}: {(reason or last or 'it wrote no output')[:_MOST_LISTED]}",
                code="state_not_rewritten",
                pipeline=pipeline,
                remedy="Read Spark's lines above. The savepoint is unchanged.",
            )
