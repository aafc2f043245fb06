"""Drop the operator state of a pipeline, but not its positions: a new location in which Spark begins with batch 0.

Spark starts operators without state only with batch 0, and reads from the beginning then. So the new location holds
each source's position, in the source's own format:

- Kafka: `sources/<index>/0`, its file of starting positions;
- files: a log of read files, all of them in its file 0, but under an id that is never read.

The watermark is state and is dropped too: rows that were too late for the old state enter the new one.

If the old location is gone, the positions of Kafka sources come from the decision log, and so does the life of the
pipeline. For sources that the job no longer reads, older checkpoints of that life are searched. A source without a
position begins where it was frozen in that life. Elsewhere, it would skip records or read them twice.
A person may let positions of sources that the job no longer reads be forgotten.

What if the process dies ...
- while the location is made: it belongs to an epoch without a holder, and is swept; the base is the old one;
- before or after the one write to the decision log: the old base, or the new one.
Repeated, it does nothing: dropped state cannot be dropped again before it begins again.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_ft.protocol.errors import ConfigurationError, StateConflictError, WalCorruptError
from airflow_ft.protocol.lookup import is_replaced
from airflow_ft.protocol.model import DRAINED, AfterAbort, Checkpoint, CheckpointState, SparkPosition
from airflow_ft.protocol.overview import Noted
from airflow_ft.protocol.retention import POSITIONS_KEPT
from airflow_ft.spark.state import source_log
from airflow_ft.spark.state.catching_up import is_planned
from airflow_ft.spark.state.draining import drain_of
from airflow_ft.spark.state.files import has_state
from airflow_ft.spark.state.left_sources import (
    OPENED_BY_JOB,
    keep_left_position,
    left_folder,
    left_positions,
    left_source,
)
from airflow_ft.spark.state.location_files import copy_source_notes, keep, offsets_line
from airflow_ft.spark.state.locations import (
    LEFT,
    SOURCES_FILE,
    START_FILE,
    SparkLocation,
    first_offsets,
    incarnation_in,
    is_kafka,
    location_of_epoch,
    location_root,
    remember_incarnation,
    require_batch,
)
from airflow_ft.spark.state.status import record_ids, recorded_ids
from airflow_ft.wal.checksums import read_checked
from airflow_ft.wal.filesystem import FileSystem, filesystem, link_tree

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog

_BEFORE_THE_FIRST = -1
_KAFKA_HEAD = "\0v1\n"
"""Spark's text before the JSON of starting positions."""

log = logging.getLogger("airflow_ft.spark")


class _Known(NamedTuple):
    """Kafka positions in the decision log, by source: of those that the job reads, and of those that it left out."""

    read: dict[str, Mapping[str, Any]]
    left: dict[str, Mapping[str, Any]]
    life: str

    def without(self, forgotten: Collection[str]) -> _Known:
        """Return the positions without those of forgotten sources."""
        return self._replace(left={name: each for name, each in self.left.items() if name not in forgotten})

    @property
    def unusable(self) -> list[str]:
        """Return the left-out sources whose positions the decision log does not have in full."""
        return sorted(name for name, each in self.left.items() if not _is_kafka_position(each))


def _way_out(store: DecisionLog, checkpoint: Checkpoint) -> str:
    """Return what ends the state of an undelivered checkpoint."""
    pipeline = checkpoint.pipeline
    if checkpoint.state is CheckpointState.QUARANTINED:
        return f"Settle it: `airflow ft in-doubt --pipeline {pipeline}` shows how."
    if checkpoint.state is CheckpointState.COMMITTING:
        return f"Deliver it: `airflow ft recover {pipeline}`, or trigger a run."
    run = "Trigger a run, which delivers it."
    if drain_of(store, pipeline) is not None:  # a rewind would drop the drained rows, and then the state that has them
        return run
    return f"{run} Or drop undelivered checkpoints: `airflow ft rewind {pipeline}`."


def reset_state(
    store: DecisionLog,
    pipeline: str,
    epoch: int,
    why: str,
    *,
    has_more: bool = True,
    seen_requests: Collection[int] | None = None,
    forget: Collection[str] = (),
) -> SparkPosition | None:
    """Drop the state of a pipeline whose base no other process moves, under a new epoch. Returns its new position.

    None: there is no state to drop. `has_more`: a drain of the state may still deliver rows. `forget`: sources that the
    job no longer reads, and whose positions are dropped, too. If the job reads one again, it begins at its start.

    Raises:
        StateConflictError: a published number is undelivered, and a rewind would bring the old state back; or there is
            an open request besides `seen_requests`.
        ConfigurationError: Spark cannot start at the position of a source, or the job has not left out one to forget.
        WalCorruptError: the old location is gone, and the decision log does not know all positions.
    """
    for checkpoint in store.open_checkpoints(pipeline):
        if checkpoint.is_undelivered or checkpoint.state is CheckpointState.TRIGGERED:
            raise StateConflictError(
                f"the checkpoint is {checkpoint.state} and not delivered. A rewind would bring back the state that it"
                " was computed from.",
                code="action_refused",
                remedy=f"{_way_out(store, checkpoint)} Then run `airflow ft reset-state {pipeline}` again.",
                pipeline=pipeline,
                checkpoint=checkpoint.number,
                state=checkpoint.state,
            )
    base = store.pipeline(pipeline).base
    if base is None or base.batch == _BEFORE_THE_FIRST:
        _require_forgotten(pipeline, base, forget)
        return None
    if is_planned(base):
        raise StateConflictError(
            "the pipeline was restored from a savepoint, and no run has rebuilt the state of later checkpoints yet.",
            code="restore_unfinished",
            remedy="Trigger a run first. Or run `airflow ft savepoint restore` again, with another --later.",
            pipeline=pipeline,
        )
    root = location_root(base.location)
    old = SparkLocation(root, pipeline, base.location, base.batch)
    known: _Known | None = None
    try:
        require_batch(old)
    except WalCorruptError as lost:
        known = _known_positions(store, old)
        if known is None:
            raise _without_positions(lost, pipeline) from None
        _require_left(pipeline, forget, known.left)
        known = known.without(forget)
        if unknown := known.unusable:
            raise _without_positions(lost, pipeline, unknown) from None
    else:
        _require_left(pipeline, forget, left_positions(old) if forget else ())
    new = SparkLocation(root, pipeline, location_of_epoch(root, pipeline, epoch), _BEFORE_THE_FIRST)
    if known is None:
        write_source_positions(filesystem(root), old, new, forget)
    else:
        _write_known_positions(known, new)
    new.sync({})
    if forget:
        log.warning(
            "the positions of %s are forgotten. If the job reads them again, they begin at their start",
            ", ".join(sorted(forget)),
        )
    position = new.position(_BEFORE_THE_FIRST)
    had_state = known is not None or has_state(old.uri)
    is_open = has_more and had_state and drain_of(store, pipeline) is None
    store.reset_state(pipeline, epoch, position, why, had_state=had_state, is_open=is_open, seen_requests=seen_requests)
    return position


def _known_positions(store: DecisionLog, old: SparkLocation) -> _Known | None:
    """Return the positions in the decision log if they are those of the lost location.

    None: the log lacks positions of sources that the job reads. A micro-batch without a checkpoint has read nothing, so
    its position is that of the newest checkpoint.
    """
    newest = store.checkpoints(old.pipeline, POSITIONS_KEPT)
    valid = [c for c in newest if c.position is not None and c.after_abort is not AfterAbort.REWOUND]
    found = valid[0] if valid else None
    if found is None or found.position is None or found.position.location != old.uri:
        return None
    positions = {name: each for name, each in sorted(found.positions.items()) if name != DRAINED}
    if not positions or not all(_is_kafka_position(each) for each in positions.values()):
        return None
    if is_replaced(store, old.pipeline, found.number, found.position):
        return None
    restored = store.noted(old.pipeline, Noted.RESTORED)
    since, life = (restored.detail["number"], restored.detail.get("life", "")) if restored else (0, "")
    return _Known(positions, _left_positions([c for c in valid if c.number > since], positions), life)


def _without_positions(lost: WalCorruptError, pipeline: str, left_out: Sequence[str] = ()) -> WalCorruptError:
    """Return the error for a lost location, with what can be done if the decision log lacks positions.

    `left_out`: only those of these sources, which the job no longer reads, are missing.
    """
    lost.remedy = (
        "Restore the folder from a backup of the same moment as the decision log, or restore a savepoint"
        " (`airflow ft savepoint list`)."
    )
    if left_out:
        lost.fields["sources"] = list(left_out)
        names = " --forget-source ".join(map(shlex.quote, left_out))
        lost.remedy += (
            f" Otherwise run `airflow ft reset-state {pipeline} --forget-source {names}`. The decision log cannot"
            f" restore the position of {', '.join(left_out)}, which the job no longer reads. If the job reads a"
            " forgotten source again, it begins at its start, and its rows are delivered again."
        )
    else:
        lost.remedy += (
            " Otherwise continue under another name, as docs/recovery.md says. The decision log alone does not have"
            " positions from which all sources of this pipeline can be read."
        )
    return lost


def _require_left(pipeline: str, forget: Collection[str], left: Collection[str]) -> None:
    """Raise ConfigurationError if the position of a source to forget is in use, or not known."""
    wrong = sorted(set(forget) - set(left))
    if not wrong:
        return
    found = f"These are {', '.join(sorted(left))}." if left else "There is none."
    raise ConfigurationError(
        f"the position of {', '.join(wrong)} cannot be forgotten. Only positions of sources that the job no longer"
        f" reads can. {found} Nothing was changed.",
        code="source_not_left_out",
        remedy="Correct the name, or leave it out.",
        pipeline=pipeline,
        sources=wrong,
        left_out=sorted(left),
    )


def _require_forgotten(pipeline: str, base: SparkPosition | None, forget: Collection[str]) -> None:
    """Raise StateConflictError if dropped state still has positions to forget: only a reset of state drops them."""
    kept = sorted(set(forget) & left_positions(SparkLocation.of(base)).keys()) if base is not None and forget else []
    if kept:
        raise StateConflictError(
            f"there is no state to drop, so the position of {', '.join(kept)} stays.",
            code="action_refused",
            remedy="Let one run deliver rows. Then run the command again.",
            pipeline=pipeline,
            sources=kept,
        )


def _left_positions(newest_first: list[Checkpoint], now: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """Return the last positions of sources that the newest checkpoint no longer reads, if they had read anything."""
    left: dict[str, Mapping[str, Any]] = {}
    for checkpoint in newest_first:
        for name, position in checkpoint.positions.items():
            if name not in now and name != DRAINED and not OPENED_BY_JOB.fullmatch(name):
                left.setdefault(name, position)
    return {name: position for name, position in left.items() if position.get("end")}


def _is_kafka_position(position: Any) -> bool:
    return isinstance(position, dict) and bool(position.get("end")) and is_kafka(position["end"])


def _write_known_positions(known: _Known, new: SparkLocation) -> None:
    """As `write_source_positions`, with sources in the order of their names. The next attempt uses its own order."""
    ends = [position["end"] for position in known.read.values()]
    for index, end in enumerate(ends):
        _write_kafka_start(_folder(new, index), end)
    keep(new.uri, START_FILE, ends)
    if ids := {n: each["topic_ids"] for n, each in enumerate(known.read.values()) if each.get("topic_ids")}:
        record_ids(new, _BEFORE_THE_FIRST, ids)
    keep(new.uri, SOURCES_FILE, list(known.read))
    remember_incarnation(new, known.life)
    for name, position in known.left.items():
        _write_kafka_start(left_folder(new, name, source_log.FOLDER), position["end"])
        keep_left_position(new, name, offsets_line(position["end"]), position.get("topic_ids") or {}, is_stored=True)
    log.warning(
        "the decision log has the positions of %s. If the job reads any other source, that source begins at its start,"
        " also if the job read it earlier",
        ", ".join([*known.read, *known.left]),
    )


def _write_kafka_start(folder: str, end: Mapping[str, Any]) -> None:
    files = filesystem(folder)
    files.write(files.uri(folder, "0"), (_KAFKA_HEAD + json.dumps(end, separators=(",", ":"))).encode())


def write_source_positions(
    files: FileSystem, old: SparkLocation, new: SparkLocation, forget: Collection[str] = ()
) -> list[Any]:
    """Let Spark begin with batch 0 in a new location at the sources' positions in the old one; returns their
    offsets. `forget`: as of `reset_state`.
    """
    offsets = old.offsets(old.batch)
    names = old.sources()
    starts = [
        write_source_position(
            old, index, offset, names[index] if index < len(names) else f"source-{index}", _folder(new, index)
        )
        for index, offset in enumerate(offsets)
    ]
    keep(new.uri, START_FILE, starts)
    if ids := recorded_ids(old):
        record_ids(new, _BEFORE_THE_FIRST, ids)
    if names:
        keep(new.uri, SOURCES_FILE, names)
    copy_source_notes(old.uri, new.uri)
    remember_incarnation(new, incarnation_in(old.uri))
    if files.names(files.uri(old.uri, LEFT)):
        link_tree(
            files.uri(old.uri, LEFT), files.uri(new.uri, LEFT), lambda path: left_source(path.parts[0]) not in forget
        )
    return starts


def write_source_position(old: SparkLocation, index: int, offset: Any, name: str, folder: str) -> Any:
    """Write the position of a source into a folder of its own, and return its offset before the first batch.

    None: it has read nothing.

    Raises:
        ConfigurationError: the source cannot begin at a position.
    """
    files, others = filesystem(old.uri), filesystem(folder)
    first = others.uri(folder, "0")
    last = source_log.last_id(offset)
    if last is not None:
        read = source_log.all_entries(files, old.uri, str(index), last)
        others.write(first, source_log.as_read_before(read))
        return {"logOffset": 0}
    if offset is None:
        return None
    begun = files.uri(old.uri, source_log.FOLDER, str(index), "0")
    if is_kafka(offset) and files.exists(begun):
        head, _ = first_offsets(read_checked(files, begun).decode())
        others.write(first, (head + json.dumps(offset, separators=(",", ":"))).encode())
        return offset
    raise ConfigurationError(
        f"source {name!r} is at {offset} and cannot start there. Only Kafka and file sources can.",
        code="source_position_unsupported",
        remedy="Give the changed pipeline a new name.",
        pipeline=old.pipeline,
        source=name,
        offset=offset,
    )


def _folder(location: SparkLocation, index: int) -> str:
    return filesystem(location.uri).uri(location.uri, source_log.FOLDER, str(index))
