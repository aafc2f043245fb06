"""A Delta table on disk, through delta-rs: one version of it, and commits onto exactly that one.

delta-rs commits by giving the name of the next version, which a file system does once (a hard link). When somebody else
was faster, it would look at what he did, and try the version behind it (a rebase); an append of a process that has
slept would so come in behind its successor. Two things close that, each by itself:

- Commits here are tried once (`max_commit_retries=0`), onto the version that was read. Whoever was overtaken, by his
  successor or by anybody else, reads the table anew, and with it the head. (The name of an old version is free again
  after log cleanup, and readers do not look there any more: so a commit counts when it is found, in the table as it is
  then, and not before.)
- Each of our commits carries an app transaction with the pipeline's app id, and delta-rs refuses a rebase over one that
  has the same, however often it tries.

Appends of others, OPTIMIZE and VACUUM may come in between: then the step is done again.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from airflow_ft.core.errors import AirflowFtError, SinkAccessError, StoreBehindSinkError, UnfitTargetError
from airflow_ft.sinks.delta.columns import PLACEHOLDER, Column, is_placeholder, new_schema, of_table
from airflow_ft.sinks.delta.ledger import OURS, Ledger
from airflow_ft.sinks.files.failures import telling
from airflow_ft.wal.filesystem import filesystem

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

log = logging.getLogger(__name__)

_LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.(json|checkpoint.*parquet)")
_FEATURES = frozenset(
    ("appendOnly", "invariants", "timestampNtz", "deletionVectors", "domainMetadata", "v2Checkpoint", "changeDataFeed",
     "vacuumProtocolCheck", "checkConstraints", "generatedColumns", "identityColumns", "columnMapping")
)  # fmt: skip
"""What rows can be added beside, if no column and no property makes use of the last four."""


class OvertakenError(Exception):
    """Somebody else has committed since the table was read, so the step begins again.

    `nothing`: it is certain that nothing came of a commit.
    """

    def __init__(self, *, nothing: bool = True) -> None:
        self.nothing = nothing


@dataclass(frozen=True)
class Snapshot:
    """One version of a table."""

    path: Path
    table: DeltaTable

    @classmethod
    def newest(cls, path: Path) -> Self | None:
        """None: there is nothing. UnfitTargetError: there is something else."""
        names = [entry.name for entry in (path / _LOG).iterdir()] if (path / _LOG).is_dir() else []
        if any(map(_COMMIT.fullmatch, names)):
            from deltalake import DeltaTable

            return cls(path, DeltaTable(str(path)))
        if path.is_dir() and any(entry.name != _LOG for entry in path.iterdir()):
            raise UnfitTargetError(
                f"{path} is not empty, and no Delta table: it has no {_LOG}.",
                remedy="name another folder; or make a table of it: CONVERT TO DELTA.",
            )
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file", str(path))
        return None

    @classmethod
    def made(cls, path: Path, schema: pa.Schema | None, partition_by: Sequence[str]) -> Self:
        """A new table; without a schema one with a placeholder. OvertakenError: somebody has just made one."""
        _create(path, schema, partition_by)
        _sync_log(path, range(1))
        filesystem(str(path)).sync_folders(path.as_uri(), path.parent.as_uri())
        found = cls.newest(path)
        if found is None:
            raise OvertakenError
        return found

    @cached_property
    def version(self) -> int:
        return int(self.table.version())

    @cached_property
    def columns(self) -> list[Column]:
        return of_table(json.loads(self.table.schema().to_json()))

    @property
    def partition_by(self) -> list[str]:
        return list(self.table.metadata().partition_columns)

    def ledger(self, app: str) -> Ledger:
        """What this version remembers. OvertakenError: it is too old for that."""
        version = self.table.transaction_version(app)
        try:
            return Ledger(self.path, app, version)
        except FileNotFoundError as error:
            newest = Snapshot.newest(self.path)
            if newest is None or newest.table.transaction_version(app) != version:
                raise OvertakenError from error
            raise StoreBehindSinkError(
                f"the sink has lost its head: {error.filename} is gone.",
                remedy=f"bring {self.path / OURS} back; compare before resuming.",
            ) from error

    def oddities(self) -> Iterator[UnfitTargetError]:
        """What keeps anybody but Spark from adding rows here."""
        properties = self.table.metadata().configuration
        protocol = self.table.protocol()
        for feature in sorted({*(protocol.writer_features or ()), *(protocol.reader_features or ())} - _FEATURES):
            yield _unfit(f"the table has the feature {feature!r}, which is not supported here.")
        for name in properties:
            if name.startswith("delta.constraints."):
                yield _unfit(f"the table has the constraint {name.rpartition('.')[2]!r}, which is not checked here.")
        if properties.get("delta.columnMapping.mode") not in (None, "none"):
            yield _unfit("the table maps columns to other names in its files (delta.columnMapping.mode).")
        if "delta.setTransactionRetentionDuration" in properties:
            yield UnfitTargetError(
                "the table forgets what was delivered: delta.setTransactionRetentionDuration drops app transactions.",
                remedy="ALTER TABLE ... UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration').",
            )

    def sync(self, ledger: Ledger) -> None:
        """Returns when this version survives a power cut, with all before it; `ledger` is its own."""
        _sync_log(self.path, range(ledger.synced + 1, self.version + 1))

    # --- commits ---------------------------------------------------------------------------------------------------

    def commit(self, app: str, ledger: Ledger, adds: Sequence[AddAction], says: Mapping[str, Any]) -> None:
        """Adds files, and makes the ledger count, in one commit. OvertakenError: nothing came of it.

        What if the process dies before the log has the commit's name: nothing happened. Behind it: it is committed, and
        the next one finds it, as does this one when delta-rs fails behind it (a checkpoint of the log, for example).
        """
        from deltalake import Transaction
        from deltalake.exceptions import CommitFailedError

        before, failure = self.table.transaction_version(app), None
        self.sync(ledger)
        ledger.synced = self.version
        version = ledger.write()
        properties = _properties([Transaction(app, version, int(time.time() * 1000))], {"airflow_ft": dict(says)})
        try:
            self.table.create_write_transaction(
                list(adds), "append", self.table.schema(), self.partition_by or None, commit_properties=properties
            )
        except Exception as error:
            failure = error
        now = Snapshot.newest(self.path)
        found = now.table.transaction_version(app) if now is not None else None
        if now is None or found != version:
            if failure is None or found != before or isinstance(failure, CommitFailedError):
                raise OvertakenError(nothing=found == before) from failure
            raise failure
        if failure is not None:
            log.warning("%s: the commit is there, but what follows it failed: %s", self.path, failure)
        _sync_log(self.path, range(self.version + 1, now.version + 1))
        ledger.sweep()

    def add_columns(self, schema: pa.Schema) -> None:
        """Adds columns, onto this version. OvertakenError: it is not the newest any more."""
        from deltalake import Schema
        from deltalake.exceptions import CommitFailedError

        try:
            fields = Schema.from_arrow(new_schema(schema)).fields
            self.table.alter.add_columns(fields, commit_properties=_properties([]))
        except CommitFailedError as error:
            raise OvertakenError from error
        _sync_log(self.path, range(self.version + 1, self.version + 2))

    def define(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Gives a table that has no columns yet its own, onto this version. OvertakenError as above.

        delta-rs would do it onto the newest version, whatever has come since. So it makes another table, and that one's
        first commit (protocol and metadata) becomes the next one of this.
        """
        assert is_placeholder(self.columns)
        model = self.path / OURS / f"model-{uuid.uuid4().hex}"
        try:
            _create(model, schema, partition_by)
            _sync_log(model, range(1))
            os.link(_commit(model, 0), _commit(self.path, self.version + 1))
        except FileExistsError as error:
            raise OvertakenError from error
        finally:
            filesystem(str(model)).remove_tree(model.as_uri())
        _sync_log(self.path, range(self.version + 1, self.version + 2))


def _create(path: Path, schema: pa.Schema | None, partition_by: Sequence[str]) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError

    made = new_schema(schema) if schema is not None else pa.schema([(PLACEHOLDER, pa.bool_())])
    by = list(partition_by) if schema is not None else None
    path.mkdir(parents=True, exist_ok=True)
    try:
        DeltaTable.create(str(path), made, partition_by=by, commit_properties=_properties([]))
    except CommitFailedError as error:
        raise OvertakenError from error
    except Exception as error:
        if "already exists" in str(error):
            raise OvertakenError from error
        raise


def _properties(transactions: list[Any], says: dict[str, Any] | None = None) -> Any:
    from deltalake import CommitProperties

    return CommitProperties(custom_metadata=says, max_commit_retries=0, app_transactions=transactions)


def _commit(path: Path, version: int) -> Path:
    return path / _LOG / f"{version:020}.json"


def _sync_log(path: Path, versions: range) -> None:
    """Returns when these commits survive a power cut: delta-rs leaves that to the system."""
    for version in versions:
        with suppress(FileNotFoundError), _commit(path, version).open("rb") as file:
            os.fsync(file.fileno())
    filesystem(str(path)).sync_folders((path / _LOG).as_uri(), path.as_uri())


def _unfit(what: str) -> UnfitTargetError:
    return UnfitTargetError(what, remedy="deliver into a table without, and copy from there by Spark.")


@contextmanager
def told(path: Path, **where: Any) -> Iterator[None]:
    """Errors of delta-rs and of the file system as ours, and all of ours with their place."""
    with telling(str(path), **where):
        try:
            yield
        except (AirflowFtError, OvertakenError):
            raise
        except Exception as error:
            if (ours := _told(path, error)) is error:
                raise
            raise ours from error


def _told(path: Path, error: Exception) -> Exception:
    if match := re.search(r"os error (\d+)", str(error)):  # of the file system, which delta-rs has in words
        return OSError(int(match[1]), os.strerror(int(match[1])), str(path))
    if type(error).__module__.partition(".")[0] not in ("_internal", "deltalake"):
        return error
    if type(error).__name__ == "DeltaProtocolError" or "features" in str(error):
        return _unfit(f"{path} cannot be written by delta-rs: {error}")
    return SinkAccessError(
        f"the log of the table {path} cannot be used: {error}.",
        remedy=f"if a file in {path / _LOG} is damaged or gone, bring it back from a backup.",
    )
