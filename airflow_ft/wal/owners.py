"""Which decision logs use a pipeline's folder. Where several do, nothing is swept.

    <root>/<pipeline>/.airflow-ft-log-<installation>      {"format": 1, "log": "<URL without secrets>", "known": [4, 9]}

A sweep deletes what its own decision log does not name. So where two logs have a pipeline of one name in one root, each
would delete what the other one has published. Each log registers before it writes. If the process dies before that, it
has written nothing; registering once more changes nothing.

The attempts' folders, of rows and of Spark's state, also show that a log is older than its files, as after the restore
of a backup. For a log gives out epoch and attempt before it makes their folder. A reset, a restore, and an attempt
without rows have a folder of Spark's state alone. `known` is the newest attempt that was there when the log
registered, or when a person last resumed this log (`require_newest`). Folders up to that attempt prove nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import NoReturn

from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.delivery_log import DeliveryLog
from airflow_ft.protocol.errors import StoreBehindSinkError
from airflow_ft.protocol.model import ParticipantPlan, canonical_json
from airflow_ft.protocol.overview import Noted
from airflow_ft.protocol.pipelines import Pipeline, PipelineStatus
from airflow_ft.wal.filesystem import FileSystem, filesystem

PREFIX = ".airflow-ft-log-"
REMEDY = (
    "Give each decision log its own `wal_root`, or its pipeline another name. If one of the logs is gone for good,"
    " delete its file. If the pipeline then halts because of that log's files, run `airflow ft resume`."
)
FORMAT = 1
SPARK = "spark"
"""The folder of Spark's locations."""
# Spark's locations may also be copies (-drain, -born). The last form is an interrupted removal.
ATTEMPT = re.compile(r"^\.?(\d+)-(\d+)(-drain|-born)?(\.removed)?$")

Rank = tuple[int, int]
"""Epoch and attempt."""


def register(store: QueryLog, root: str, pipeline: str) -> str:
    """Note that this decision log uses the pipeline's folder. Return which others use it, as `shared` does."""
    files = filesystem(root)
    folder = files.uri(root, pipeline)
    where = files.uri(folder, f"{PREFIX}{store.installation}")
    if not files.exists(where):
        with suppress(FileExistsError):  # another process of this log was faster
            files.write(where, _text(store, newest_attempt(files.names(folder), _locations(files, folder))))
    return shared(files, folder, files.names(folder))


def shared(files: FileSystem, folder: str, names: Iterable[str]) -> str:
    """Say which decision logs use a pipeline's folder that has these names in it; "": one at most."""
    found = sorted(name for name in names if name.startswith(PREFIX))
    if len(found) < 2:
        return ""
    owners_text = ", ".join(f"{name} ({_log(files, files.uri(folder, name))})" for name in found)
    return f"{len(found)} decision logs use {folder}: {owners_text}. So files of ended attempts stay there."


def newest_attempt(*names: Iterable[str]) -> Rank:
    """Return the newest attempt that has a folder; (0, 0): none."""
    return max(((int(m[1]), int(m[2])) for m in map(ATTEMPT.match, chain(*names)) if m), default=(0, 0))


def is_newer(files: FileSystem, folder: str, names: Sequence[str], locations: Sequence[str], than: Rank) -> bool:
    """Return whether a pipeline's folder has an attempt newer than `than` that a log does not know.

    `names` are in it, and `locations` in its folder of Spark's locations.
    """
    found = newest_attempt(names, locations)
    return found > than and any(
        found > _known(files, files.uri(folder, name)) for name in names if name.startswith(PREFIX)
    )


def require_newest(store: DeliveryLog, root: str, pipeline: str, participants: Sequence[ParticipantPlan] = ()) -> None:
    """Halt the pipeline if its folder has attempts that this decision log has not given out yet.

    A log that was halted for them and resumed may continue, because a person has decided. Only the log's own events
    count for that: another backup may have taken its place. Does nothing if another log uses the folder, too.

    Raises:
        StoreBehindSinkError: the decision log is older than its files.
    """
    files = filesystem(root)
    folder = files.uri(root, pipeline)
    names = files.names(folder)
    own = f"{PREFIX}{store.installation}"
    if [name for name in names if name.startswith(PREFIX)] != [own]:
        return
    locations = _locations(files, folder)
    row = store.pipeline(pipeline)  # read after the names: this log gives out a number before its folder is made
    if is_newer(files, folder, names, locations, (row.epoch, row.last_attempt)):
        found = newest_attempt(names, locations)
        halt = store.noted(pipeline, Noted.HALTED)
        told = () if halt is None else halt.detail.get("found", ())
        if row.status is not PipelineStatus.ACTIVE or tuple(told) != found:
            _halt(store, folder, row, found, participants)
        files.replace(files.uri(folder, own), _text(store, found))


def require_newest_files(store: DeliveryLog, pipeline: str) -> None:
    """As `require_newest`, where files of open checkpoints lie: for a recovery that does not know the root."""
    segments = [each.segment.location for each in store.open_checkpoints(pipeline) if each.segment is not None]
    for root in {location.rsplit("/", 3)[0] for location in segments}:
        require_newest(store, root, pipeline)


def _halt(
    store: DeliveryLog,
    folder: str,
    row: Pipeline,
    found: Rank,
    participants: Sequence[ParticipantPlan],
) -> NoReturn:
    error = StoreBehindSinkError(
        f"{folder} has files of epoch {found[0]}, attempt {found[1]}, but the decision log has only"
        f" reached epoch {row.epoch}, attempt {row.last_attempt}. The log was restored from a backup, or is not the"
        " newest one.",
        code="log_behind_files",
        remedy=f"Bring back the newer decision log, then run `airflow ft resume {row.name}`. If it is gone for good,"
        f" compare the sinks as docs/recovery.md says, copy the folder, then run `airflow ft adopt {row.name}`. After"
        " that, runs delete the newer files.",
        pipeline=row.name,
        path=folder,
        found=list(found),
    )
    headline, code, remedy = error.headline, error.code, error.remedy
    store.halt(row.name, error.reason, headline, code=code, remedy=remedy, participants=participants, found=found)
    raise error


def _locations(files: FileSystem, folder: str) -> Sequence[str]:
    return files.names(files.uri(folder, SPARK))


def _text(store: QueryLog, known: Rank) -> bytes:
    return canonical_json({"format": FORMAT, "log": store.url, "known": list(known)}).encode()


def _known(files: FileSystem, where: str) -> Rank:
    with suppress(OSError, ValueError, KeyError, TypeError), files.open_plain(where) as file:
        epoch, attempt = json.loads(file.read())["known"]
        return int(epoch), int(attempt)
    return 0, 0  # of an earlier release


def _log(files: FileSystem, where: str) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError), files.open_plain(where) as file:
        return str(json.loads(file.read())["log"])
    return "not readable"
