"""A Delta table, through delta-rs: one version of it, and commits onto exactly that one.

delta-rs commits by creating the name of the next version, which succeeds once (`airflow_ft.sinks.delta.place`). If
another writer was faster, it would examine that commit and try the version after it (a rebase). An append of a process
that has slept could then follow its successor. Two independent rules prevent that:

- Commits here are tried once (`max_commit_retries=0`), onto the version that was read. A writer that was overtaken
  reads the table again, and with it the head. (The name of an old version is free again after log cleanup, and readers
  do not look there any more. So a commit counts only when the current table contains it.)
- Each of our commits carries an app transaction with the pipeline's app id, and delta-rs refuses a rebase over one
  that
  has the same, however often it tries.

Appends of others, OPTIMIZE and VACUUM may come in between: then the step is repeated.
"""

from __future__ import annotations

import logging
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from airflow_ft.protocol.errors import (
    AirflowFtError,
    SinkAccessError,
    StoreBehindSinkError,
    UnfitTargetError,
    WalCorruptError,
    together,
)
from airflow_ft.sinks.base.document import OvertakenError
from airflow_ft.sinks.base.memory import AS_IT_IS
from airflow_ft.sinks.base.table_columns import lacking, new_schema
from airflow_ft.sinks.delta.columns import PLACEHOLDER, Column, is_placeholder, of_table
from airflow_ft.sinks.delta.features import feature_of_error, unfit, unsupported
from airflow_ft.sinks.delta.ledger import Ledger
from airflow_ft.sinks.delta.place import LOG, OURS, Place
from airflow_ft.sinks.files.failures import translated_errors
from airflow_ft.sinks.files.objects import Objects

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

log = logging.getLogger(__name__)

_COMMIT = re.compile(r"(\d{20})\.(json|checkpoint.*parquet)")


@dataclass(frozen=True)
class Snapshot:
    """One version of a table. What it knows of `apps` is the version of their transactions."""

    place: Place
    table: DeltaTable
    version: int
    mark: object
    apps: dict[str, int | None] = field(default_factory=dict)

    @classmethod
    def newest(cls, place: Place, seen: Self | None = None) -> Self | None:
        """None: there is nothing. UnfitTargetError: there is something else. After `seen` only what is new is read."""
        from deltalake.exceptions import TableNotFoundError

        if seen is not None and (found := seen._later()) is not None:
            return found
        for again in (True, False):  # what is strange may have been made between two looks
            if place.files.exists(place.uri(LOG)):
                try:
                    table = place.open()
                    version = int(table.version())
                    return cls(place, table, version, place.mark(version))
                except TableNotFoundError:
                    if any(map(_COMMIT.fullmatch, place.files.names(place.uri(LOG)))):
                        if again:
                            continue
                        raise
            if all(name == LOG for name in place.files.names(place.root)):
                return None
        what = f"the folder {place} is not empty and is not a Delta table: it has no {LOG}."
        remedy = "Choose another folder, or convert the files with Spark (CONVERT TO DELTA)."
        raise UnfitTargetError(what, code="not_a_table", remedy=remedy, path=str(place))

    @classmethod
    def made(cls, place: Place, schema: pa.Schema | None, partition_by: Sequence[str]) -> Self:
        """Create a table; without a schema with a placeholder.

        Raises:
            OvertakenError: another process has just created it.
        """
        _create(place, schema, partition_by)
        place.sync_log(range(1))
        found = cls.newest(place)
        if found is None:
            raise OvertakenError
        return found

    def _later(self) -> Self | None:
        """Return the newest version, from the commits since; None: this version is no longer in the log.

        delta-rs reads the whole log when a table is opened, and for each query of an app transaction.
        """
        if self.mark is None or self.place.mark(self.version) != self.mark:  # dropped, created again, or cleaned up
            return None
        if self.place.mark(self.version + 1) is None:
            return self
        self.table.update_incremental()
        version = int(self.table.version())
        if self.place.put_together() > version:  # later names are free again, and no reader looks there
            return None
        apps = dict(self.apps)
        try:
            for number in range(self.version + 1, version + 1):
                for transaction in (each["txn"] for each in self.place.actions(number) if "txn" in each):
                    if transaction["appId"] in apps:
                        apps[transaction["appId"]] = int(transaction["version"])
        except WalCorruptError:  # cleaned up meanwhile
            return None
        return type(self)(self.place, self.table, version, self.place.mark(version), apps)

    def of_app(self, app: str) -> int | None:
        """The version of its transaction; None: there is none."""
        if app not in self.apps:
            self.apps[app] = self.table.transaction_version(app)
        return self.apps[app]

    @cached_property
    def columns(self) -> list[Column]:
        return of_table(pa.schema(self.table.schema()))

    @property
    def partition_by(self) -> list[str]:
        return list(self.table.metadata().partition_columns)

    def ledger(self, app: str) -> Ledger:
        """Return what this version remembers. OvertakenError: it is too old for that."""
        version = self.of_app(app)
        try:
            return Ledger(self.place, app, version)
        except FileNotFoundError as error:
            newest = Snapshot.newest(self.place)
            if newest is None or newest.of_app(app) != version:
                raise OvertakenError from error
            what = f"the sink has lost its fence: {error.filename} is gone."
            remedy = f"Restore {self.place.below(OURS)}, then run `airflow ft resume`. {AS_IT_IS}"
            raise StoreBehindSinkError(what, code="ledger_lost", remedy=remedy, path=str(error.filename)) from error

    def unsupported(self) -> Iterator[UnfitTargetError]:
        """Yield what delta-rs cannot commit beside, rows or not: features and versions of the table's protocol."""
        protocol = self.table.protocol()
        features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
        yield from unsupported(protocol.min_reader_version, protocol.min_writer_version, features)

    def oddities(self) -> Iterator[UnfitTargetError]:
        """Yield what keeps anybody but Spark from adding rows here."""
        yield from self.unsupported()
        properties = self.table.metadata().configuration
        for name in properties:
            if name.startswith("delta.constraints."):
                yield unfit(
                    f"the table has the constraint {name.rpartition('.')[2]!r}, which this sink does not check.",
                    setting=name,
                )
        if properties.get("delta.columnMapping.mode") not in (None, "none"):
            yield unfit(
                "the table maps columns to other names in its files (delta.columnMapping.mode), which this sink does"
                " not support.",
                setting="delta.columnMapping.mode",
            )
        if "delta.setTransactionRetentionDuration" in properties:
            yield UnfitTargetError(
                "delta.setTransactionRetentionDuration of the table drops app transactions, which prove deliveries.",
                code="table_setting_unsafe",
                remedy="Run `ALTER TABLE ... UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration')` in Spark.",
                setting="delta.setTransactionRetentionDuration",
            )

    def sync(self, ledger: Ledger) -> None:
        """Returns when this version survives a power cut, with all before it; `ledger` is its own."""
        self.place.sync_log(range(ledger.others["synced"] + 1, self.version + 1))

    # --- commits ---------------------------------------------------------------------------------------------------

    def commit(self, app: str, ledger: Ledger, adds: Sequence[AddAction], says: Mapping[str, Any]) -> Self:
        """Adds files, and makes the ledger count, in one commit. OvertakenError: nothing came of it.

        Returns the newest version.

        What if the process dies before the log has the commit's name: nothing happened. Behind it: it is committed, and
        the next one finds it, as does this one when delta-rs fails behind it (a checkpoint of the log, for example).
        """
        from deltalake import Transaction
        from deltalake.exceptions import CommitFailedError

        before, failure = self.of_app(app), None
        if problems := list(self.unsupported()):  # delta-rs would refuse the commit without the reason
            raise together(problems)
        self.sync(ledger)
        ledger.others["synced"] = self.version
        version = ledger.write()
        properties = _properties([Transaction(app, version, int(time.time() * 1000))], {"airflow_ft": dict(says)})
        try:
            self.table.create_write_transaction(
                list(adds), "append", self.table.schema(), self.partition_by or None, commit_properties=properties
            )
        except Exception as error:
            failure = error
        now = type(self).newest(self.place, self)
        found = now.of_app(app) if now is not None else None
        if now is None or found != version:
            if failure is None or found != before or isinstance(failure, CommitFailedError):
                # A request that is still under way can do nothing any more once the version was given to another one.
                taken = now is not None and now.version > self.version
                raise OvertakenError(nothing=found == before and taken) from failure
            raise failure
        if failure is not None:
            log.warning("%s: committed, but a step after the commit failed: %s", self.place, failure)
        self.place.sync_log(range(self.version + 1, now.version + 1))
        ledger.sweep()
        return now

    def evolve(self, schema: pa.Schema, partition_by: Sequence[str]) -> bool:
        """Commit the columns that this version lacks; False: it lacks none.

        OvertakenError: it is not the newest version any more.
        """
        from deltalake import Schema
        from deltalake.exceptions import CommitFailedError

        if is_placeholder(self.columns):
            self.define(schema, partition_by)
            return True
        new = lacking(schema, self.columns)
        if not new.names:
            return False
        try:
            fields = Schema.from_arrow(new_schema(new)).fields
            self.table.alter.add_columns(fields, commit_properties=_properties([]))
        except CommitFailedError as error:
            raise OvertakenError from error
        self.place.sync_log(range(self.version + 1, self.version + 2))
        return True

    def define(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Gives a table that has no columns yet its own, onto this version. OvertakenError as above.

        delta-rs would do it onto the newest version, whatever has come since. So it makes another table, and that one's
        first commit (protocol and metadata) becomes the next one of this.
        """
        assert is_placeholder(self.columns)
        model = self.place.below(OURS, f"model-{uuid.uuid4().hex}")
        try:
            _create(model, schema, partition_by)
            model.sync_log(range(1))
            self.place.take(self.version + 1, model.commit_uri(0))
        except FileExistsError as error:
            raise OvertakenError from error
        finally:
            model.files.remove_tree(model.root)
        self.place.sync_log(range(self.version + 1, self.version + 2))


def _create(place: Place, schema: pa.Schema | None, partition_by: Sequence[str]) -> None:
    from deltalake.exceptions import CommitFailedError

    made = new_schema(schema) if schema is not None else pa.schema([(PLACEHOLDER, pa.bool_())])
    by = list(partition_by) if schema is not None else None
    try:
        place.create(made, by, _properties([]))
    except CommitFailedError as error:
        raise OvertakenError from error
    except Exception as error:
        if "already exists" in str(error):
            raise OvertakenError from error
        raise


def _properties(transactions: list[Any], says: dict[str, Any] | None = None) -> Any:
    from deltalake import CommitProperties

    return CommitProperties(custom_metadata=says, max_commit_retries=0, app_transactions=transactions)


@contextmanager
def translated_delta_errors(place: Place, **where: Any) -> Iterator[None]:
    """Errors of delta-rs, of the file system and of the store as ours, and all of ours with their place."""
    with translated_errors(str(place), **where):
        try:
            yield
        except (AirflowFtError, OvertakenError):
            raise
        except Exception as error:
            if (ours := _translated(place, error)) is error:
                raise
            raise ours from error


def _translated(place: Place, error: Exception) -> Exception:
    text = re.sub(r"\x1b\[\d*m|\s*↳", "", str(error)).replace("\n", ": ")  # colours, and what led to what
    text = re.sub(r"\s+", " ", text)
    if match := re.search(r"os error (\d+)", text) if not place.is_bucket else None:  # of the file system, in words
        return OSError(int(match[1]), os.strerror(int(match[1])), str(place))
    if isinstance(place.files, Objects) and ("Generic S3 error" in text or "Error performing" in text):
        return place.files.explain(str(place), text)
    if type(error).__module__.partition(".")[0] not in ("_internal", "deltalake"):
        return error
    if type(error).__name__ == "DeltaProtocolError" or "features" in text:
        return unfit(f"delta-rs cannot use {place}: {text.rstrip('.')}.", place=str(place))
    if (found := feature_of_error(str(place), text)) is not None:
        return found
    what = f"delta-rs cannot read the log of the table {place}: {text.rstrip('.')}."
    remedy = f"Check {place.below(LOG)}, and restore damaged or missing files from a backup."
    return SinkAccessError(what, code="log_unreadable", remedy=remedy, path=str(place))
