"""Take a savepoint of a pipeline, whether it runs or not: of its newest confirmed checkpoint, or a retained one.

It needs no other process: published files in Spark's location never change, and the newest confirmed checkpoint stays
restorable (I10). So this process copies the files, by links where the file system has them. A running or killed driver
and unavailable sinks make no difference.

What if the process dies ...
- before `_metadata` is written: the folder is no savepoint; `airflow ft savepoint list` shows it as unfinished.
- after it: the savepoint is there; the event log may lack its line.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    StorageUnavailableError,
    TransientError,
    WalCorruptError,
)
from airflow_ft.protocol.lookup import confirmed_position, is_replaced, require_moved
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.spark.savepoints.metadata import METADATA, SPARK, Savepoint, files_of, read_metadata, write_metadata
from airflow_ft.spark.state.draining import drain_of
from airflow_ft.spark.state.files import DAMAGED, drop_unnamed, has_state, sizes
from airflow_ft.spark.state.locations import SparkLocation, copy_location, location_root, lost_state, require_batch
from airflow_ft.spark.state.meaning import has_lost_state
from airflow_ft.spark.state.operators import backend, operators
from airflow_ft.store.events import EventKind
from airflow_ft.wal.filesystem import filesystem, is_remote
from airflow_ft.wal.roots import claim, require_files

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog

TOO_LATE = "the state was already deleted"
_TRIES = 5
_REQUEST = "request"
_EVENTS = 1000  # newest ones in which the savepoint of an earlier try is looked for
_KINDS = (
    EventKind.REQUESTED,
    EventKind.TURN,
    EventKind.STAGED,
    EventKind.STATE_RESET,
    EventKind.RESTORED,
    EventKind.SAVEPOINT,
)
"""Kinds of these events. The deletion of a checkpoint leaves an event, too, and there may be any number of them."""

log = logging.getLogger(__name__)


def take_once(
    store: DecisionLog, pipeline: str, folder: str, by: str, request: int | None = None
) -> tuple[str, Savepoint]:
    """Take a savepoint for a stop (`request`: its id), or return the one that an earlier try has taken for it.

    If the state was dropped after that try (`airflow_ft.spark.task.cleanup`), every open request to stop gets that
    savepoint, because a later one would lack the state.

    Raises:
        ConfigurationError: the state was already deleted; and as `take`.
    """
    newest = store.latest_confirmed(pipeline)
    if newest is None:
        return take(store, pipeline, folder, by, request=request)  # which refuses it
    asked, dropped = set() if request is None else {request}, False
    for event in store.events(pipeline, limit=_EVENTS, kinds=_KINDS):
        if event.kind == EventKind.RESTORED:  # earlier savepoints hold another state
            break
        if event.kind == EventKind.STATE_RESET and not dropped:
            dropped = True
            asked |= {each.id for each in store.open_requests(pipeline)}
        is_saved = event.kind == EventKind.SAVEPOINT and event.number == newest.number
        if is_saved and event.detail.get(_REQUEST) in asked:
            with suppress(ConfigurationError, WalCorruptError):  # deleted since
                return event.detail["uri"], read_metadata(event.detail["uri"])
    return take(store, pipeline, folder, by, request=request, needs_state=True)


def too_late(store: DecisionLog, pipeline: str, lost: str) -> set[int | None]:
    """Return the requests whose state was deleted before a run answered them. None: a request made now.

    `lost`: "state" counts every deletion, "open" only deletions of state that a drain would have delivered.

    A person deletes state, or a stream at its end, which then dies before it answers. The next try can neither drain
    nor save that state. A request made after the deletion is not late if something ran in between. A published
    checkpoint shows that. So does a run that took the turn, unless an older stop was open.
    """
    newer, since_staged, since_turn, late = set[int](), {None}, {None}, set[int | None]()
    asked = {each.id for each in store.open_requests(pipeline) if each.kind is RequestKind.STOP}
    for event in store.events(pipeline, limit=_EVENTS, kinds=_KINDS):
        if event.kind == EventKind.REQUESTED:
            for each in (newer, since_staged, since_turn):
                each.add(event.detail["id"])
        elif event.kind in (EventKind.STAGED, EventKind.RESTORED):
            since_staged.clear()
            since_turn.clear()
        elif event.kind == EventKind.TURN and event.detail.get("has_turn"):
            since_turn.clear()
        elif event.kind == EventKind.STATE_RESET and event.detail.get(lost):
            older = asked - newer
            late |= older | (since_staged if older else since_turn)
    return late


def taken_for(store: DecisionLog, pipeline: str, request: int) -> tuple[str, bool]:
    """Return where the savepoint is that was taken for a request, for people, and whether there is one."""
    problem = ""
    for event in store.events(pipeline, limit=_EVENTS, kinds=_KINDS):
        if event.kind == EventKind.SAVEPOINT and event.detail.get(_REQUEST) == request:
            uri = event.detail["uri"]
            try:
                read_metadata(uri)
            except (AirflowFtError, OSError) as error:  # deleted since, or its storage is away
                problem = (
                    problem
                    or f"the savepoint in {uri} cannot be read (look again: `airflow ft savepoint list`): {error}"
                )
            else:
                return f"savepoint of checkpoint {event.number}: {uri}", True
    return problem or "no savepoint was taken", False


def take(
    store: DecisionLog,
    pipeline: str,
    folder: str,
    by: str,
    number: int | None = None,
    *,
    request: int | None = None,
    needs_state: bool = False,
) -> tuple[str, Savepoint]:
    """Take a savepoint in `folder` of the newest confirmed checkpoint, or of `number`; returns its URI and contents.

    `request`: the id of the request that it answers (`take_once`). `needs_state`: refuse it if the state was deleted
    before (`too_late`).

    Raises:
        ConfigurationError: the checkpoint is not confirmed, is pruned, or has no position (a job that reads no
            source); or the folder is unsuitable; or needed state is deleted.
        WalCorruptError: Spark's files of it are damaged or missing.
        TransientError: the folder cannot be written.
    """
    for _ in range(_TRIES):
        covered, base = confirmed_position(store, pipeline, number)
        if needs_state and base.batch < 0 and request in too_late(store, pipeline, "state"):
            raise ConfigurationError(
                f"{TOO_LATE}, so the savepoint would lack it.",
                code="state_replaced",
                remedy=f"To save the positions without state, run `airflow ft savepoint trigger {pipeline}`.",
                pipeline=pipeline,
                checkpoint=covered,
            )
        with writing(folder, pipeline):
            claim(store, folder)
        id, uri = new_folder(folder, pipeline, covered)
        with removed_on_error(folder, uri, pipeline), _naming_the_original(base, uri):
            try:
                copied = _copy(pipeline, base, uri)
                break
            except WalCorruptError as error:
                if error.code == DAMAGED:
                    raise
                require_moved(store, pipeline, number, (covered, base), error)
                filesystem(uri).remove_tree(uri)
        log.info("the files of checkpoint %d were removed meanwhile; trying again", covered)
    else:
        raise TransientError(
            "the pipeline prunes its checkpoints faster than a savepoint can copy one.",
            code="state_pruned",
            remedy="Set a larger CheckpointConfig.num_retained, and try again.",
            pipeline=pipeline,
        )
    checkpoint = store.checkpoint(pipeline, covered)
    spec = checkpoint.spec
    drained = drain_of(store, pipeline, (covered, base)) is not None  # even if more was published, or it was reset
    with removed_on_error(folder, uri, pipeline), _naming_the_original(base, uri):
        savepoint = finish(
            uri,
            copied,
            Savepoint(
                id=id,
                pipeline=pipeline,
                installation=store.installation,
                number=covered,
                batch=base.batch,
                taken_at=store.now(),
                taken_by=by,
                positions=_positions(copied),
                operators=(),
                backend="",
                drained=drained,
                spec=store.spec(spec) if spec else {},
                versions=_versions(),
                files={},
                rows={} if checkpoint.segment is None else dict(checkpoint.segment.rows),
                restored=is_replaced(store, pipeline, covered, base),
                segment="" if checkpoint.segment is None else checkpoint.segment.digest,
            ),
        )
    store.note_savepoint(
        pipeline, covered, f"in {uri}: {by}", {"id": id, "uri": uri} | ({} if request is None else {_REQUEST: request})
    )
    log.info("savepoint of checkpoint %d of %s: %s", covered, pipeline, uri)
    return uri, savepoint


def new_folder(folder: str, pipeline: str, number: int) -> tuple[str, str]:
    """The id of a new savepoint, and its URI in `folder`."""
    id = str(uuid.uuid4())
    return id, filesystem(folder).uri(folder, f"savepoint-{pipeline}-{number}-{id[:8]}")


@contextmanager
def removed_on_error(folder: str, uri: str, pipeline: str) -> Iterator[None]:
    """Leaves nothing of a savepoint that cannot be made. Raises as `writing`."""
    with writing(folder, pipeline):
        try:
            yield
        except BaseException:
            with suppress(OSError):
                filesystem(uri).remove_tree(uri)
            raise


@contextmanager
def _naming_the_original(base: SparkPosition, uri: str) -> Iterator[None]:
    """Make the error for a damaged snapshot name the pipeline's own file, because the copy is removed."""
    try:
        yield
    except WalCorruptError as error:
        if error.code != DAMAGED:
            raise
        what, remedy, path = (
            each.replace(filesystem(uri).uri(uri, SPARK), base.location)
            for each in (error.what, error.remedy, error.fields["path"])
        )
        raise WalCorruptError(what, code=DAMAGED, remedy=remedy, path=path) from error


@contextmanager
def writing(folder: str, pipeline: str) -> Iterator[None]:
    """Raise TransientError if a write to the folder fails. A StorageUnavailableError passes unchanged."""
    try:
        yield
    except StorageUnavailableError:
        raise
    except OSError as error:
        raise TransientError(
            f"cannot write to {folder}: {error.strerror or error}.",
            code="storage_unavailable",
            remedy="Check that the disk is mounted and has free space, and that this user may write there.",
            pipeline=pipeline,
            path=folder,
            reason=error.strerror or str(error),
        ) from error


def finish(uri: str, copied: SparkLocation, metadata: Savepoint) -> Savepoint:
    """Makes the folder `uri` a savepoint, of the location that was copied into it."""
    drop_unnamed(copied.uri)
    savepoint = replace(
        metadata,
        batch=copied.batch,
        operators=operators(copied),
        backend=backend(copied),
        files=files_of(copied.uri, filesystem(copied.uri).tree(copied.uri)),
    )
    filesystem(uri).sync_tree(uri, uri.rpartition("/")[0], {})
    write_metadata(uri, savepoint)
    # A remote place has no mount point below which files could have been written.
    written = {} if is_remote(uri) else savepoint.files
    require_files(uri, [(METADATA, None), *((f"{SPARK}/{name}", file.size) for name, file in written.items())])
    return savepoint


def _copy(pipeline: str, base: SparkPosition, uri: str) -> SparkLocation:
    """Durable, cut at the batch."""
    root = location_root(base.location)
    old = SparkLocation.of(base, pipeline, root)
    require_batch(old)
    files = filesystem(uri)
    files.make_folder(uri)
    copied = copy_location(old, files.uri(uri, SPARK))
    if has_lost_state(copied) or (has_state(copied.uri) and sizes(copied.uri, copied.batch) is None):
        raise lost_state(pipeline, base.location, copied.batch)
    return copied


def _positions(location: SparkLocation) -> Mapping[str, Any]:
    names = location.sources()
    offsets = location.offsets(location.batch)
    return {names[i] if i < len(names) else f"source-{i}": offset for i, offset in enumerate(offsets)}


def _versions() -> dict[str, str]:
    found = {}
    for name in ("airflow-ft", "pyspark"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found
