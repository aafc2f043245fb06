"""A Paimon table in a folder: one version of it, and commits onto exactly that one.

    <table>/schema/schema-0, snapshot/snapshot-1, manifest/..., bucket-0/data-....parquet     Paimon's own files

A snapshot's name is created once, by a hard link. A step that was overtaken reads the table again, and with it the
memory (`airflow_ft.sinks.paimon.memory`). (pypaimon renames a file onto the name, and only looks before whether it is
taken: two of its processes can both believe that they have committed.)

Snapshots expire in ascending order, and their names are free again. A writer that has slept could create one of them,
where no reader looks. So a snapshot counts only if it is in the chain of the current ones: `Version.holds`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from airflow_ft.protocol.errors import StoreBehindSinkError, UnfitTargetError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sinks.base.document import OvertakenError
from airflow_ft.sinks.base.table_columns import Column, lacking
from airflow_ft.sinks.paimon.buckets import Layout
from airflow_ft.sinks.paimon.columns import REQUIRED, fields_of, of_table
from airflow_ft.sinks.paimon.features import APPEND, NEWEST, layout_of, unfit, unsupported
from airflow_ft.sinks.paimon.manifests import ADDED, Manifests, Record, identity
from airflow_ft.sinks.paimon.memory import OURS, Awaited, Chain, Document, Ledger, Written
from airflow_ft.sinks.paimon.partitions import Partitions
from airflow_ft.sinks.paimon.place import SCHEMAS, SNAPSHOTS, Place, lost, replaced
from airflow_ft.wal.local import local_path, sync_above

if TYPE_CHECKING:
    import pyarrow as pa

_OPTIONS = {"bucket": str(APPEND), "file.format": "parquet"}
_USER = "airflow_ft"
_BATCH = 2**63 - 1
"""The identifier of a commit that belongs to no stream (Paimon's BatchWriteBuilder)."""


@dataclass(frozen=True)
class Version:
    """One version of a table. Without a schema it has no columns yet, and other programs see no table."""

    place: Place
    schema: Mapping[str, Any] | None
    snapshot: Record | None

    @classmethod
    def newest(cls, place: Place) -> Self | None:
        """None: there is no table. UnfitTargetError, SinkAccessError: there is something else."""
        place.refuse_file()
        for _ in range(2):  # what is strange may have been made between two looks
            latest = place.latest()
            snapshot = place.record(SNAPSHOTS, latest) if latest else None
            newest = max(place.numbers(SCHEMAS), default=-1)
            schema = place.record(SCHEMAS, newest) if newest >= 0 else None
            if (latest and snapshot is None) or (newest >= 0 and schema is None):  # removed meanwhile
                continue
            if schema is not None:
                return cls(place, schema, snapshot)
            names = place.files.names(place.root)
            if snapshot is None and OURS in names:
                return cls(place, None, None)
            if snapshot is None and all(name.startswith(".") or name == SCHEMAS for name in names):
                return None
        what = f"the folder {place} is not empty and is not a Paimon table: it has no {SCHEMAS}/{SCHEMAS}-0."
        raise UnfitTargetError(what, code="not_a_table", remedy="Choose another folder.", path=str(place))

    @classmethod
    def made(cls, place: Place, schema: pa.Schema | None, layout: Layout) -> Self:
        """Create a table; without a schema one that has no columns yet. OvertakenError: another process was faster."""
        with suppress(FileExistsError):
            place.files.make_folder(place.uri())
        sync_above(local_path(place.root))  # before others find the table, who do not sync these folders
        with suppress(FileExistsError):
            place.files.make_folder(place.uri(OURS))
        place.files.sync_folders(place.root, place.root)
        version = cls(place, None, None)
        if schema is not None:
            version.define(schema, layout)
            return cls.newest(place) or version
        return version

    # --- what it is ------------------------------------------------------------------------------------------------

    @cached_property
    def columns(self) -> list[Column] | None:
        """Its columns; None: they are not known yet."""
        return of_table(self.schema) if self.schema is not None else None

    @cached_property
    def layout(self) -> Layout:
        return layout_of(self.schema) if self.schema is not None else Layout()

    @cached_property
    def partitions(self) -> Partitions:
        by = self.layout.partition_by
        return Partitions.of(by, self.kinds_of(by), (self.schema or {}).get("options") or {})

    def kinds_of(self, names: Sequence[str]) -> list[str]:
        """Return the types of columns, as Spark calls them."""
        types = {column.name: column.type for column in self.columns or ()}
        return [types[name] for name in names]

    def following(self) -> dict[tuple[bytes, int], int]:
        """Return the next sequence number of each bucket of each partition.

        Raises:
            UnfitTargetError: there is a partition with another number of buckets.
        """
        found: dict[tuple[bytes, int], int] = {}
        others: dict[tuple[Any, ...], int] = {}
        for record in self.manifests.entries(self.manifests.listed(self.snapshot)):
            slot = (record["_PARTITION"], record["_BUCKET"])
            found[slot] = max(found.get(slot, 0), record["_FILE"]["_MAX_SEQUENCE_NUMBER"] + 1)
            if record["_TOTAL_BUCKETS"] != self.layout.buckets.count:
                if record["_KIND"] == ADDED:
                    others[identity(record)] = record["_TOTAL_BUCKETS"]
                else:
                    others.pop(identity(record), None)
        for count in others.values():
            found_there = count_text(count, "bucket")
            what = f"the table has a partition with {found_there}, and others are to have {self.layout.buckets.count}"
            raise unfit(what, setting="bucket")
        return found

    @property
    def number(self) -> int:
        """Return the number of its snapshot; 0: it has none."""
        return int(self.snapshot["id"]) if self.snapshot is not None else 0

    @property
    def manifests(self) -> Manifests:
        return Manifests(self.place.files, self.place.root)

    def oddities(self) -> Iterator[UnfitTargetError]:
        """Yield what keeps rows from being added here."""
        if self.schema is not None:
            yield from unsupported(self.schema)
        if self.snapshot is not None and int(self.snapshot.get("version") or 1) > NEWEST:
            yield unfit(f"the table's snapshot has version {self.snapshot['version']}", setting="version")
        if self.snapshot is not None and self.snapshot.get("nextRowId"):  # Java writes a 0 into each
            yield unfit("the table numbers its rows", setting="row-tracking.enabled")

    # --- memory ------------------------------------------------------------------------------------------------------

    def ledger(self, group: str) -> Ledger:
        """Return what this version remembers. StoreBehindSinkError: it cannot be known."""
        chain = Chain(self.place.files, self.place.root, group)
        found = chain.newest()
        if found.awaited is None:
            return Ledger(chain, found, found.memory, pending=False)
        holds = self.holds(chain, found.awaited)
        if holds is None and self.number < found.awaited.snapshot - 1:
            holds = self._accepted(chain, found.awaited)
        memory = found.memory if holds else found.awaited.without
        return Ledger(chain, found, memory, pending=holds is None)

    def holds(self, chain: Chain, awaited: Awaited) -> bool | None:
        """Return whether an awaited snapshot is one of the table; None: it is not there, and may still come.

        Raises:
            OvertakenError: the table is newer than this version.
            StoreBehindSinkError: the number has expired, and nothing shows which snapshot had it.
        """
        number = awaited.snapshot
        found = self.place.record(SNAPSHOTS, number)
        if self.place.latest() != self.number:
            raise OvertakenError
        if found is None and self.number < number:
            return None
        if found is not None and found.get("uuid") != awaited.uuid:
            return False
        if found is not None and (number == self.number or self.place.is_unbroken(number - 1)):
            return True
        # The snapshots before it have expired. If it is there, it may be of a writer that slept until its number was
        # free again: then the next one, which has not expired, does not name its files.
        later = next((each for each in self.place.numbers(SNAPSHOTS) if each > number), None)
        there = self.place.record(SNAPSHOTS, later) if later is not None else None
        if there is None:
            raise OvertakenError
        if self._names(there, awaited):
            return True
        return found is None and self._accepted(chain, awaited)

    def _accepted(self, chain: Chain, awaited: Awaited) -> bool:
        """Return True if a person says that the rows of a lost snapshot are there. StoreBehindSinkError otherwise."""
        if not self.place.files.exists(accepted := chain.accepted(awaited.uuid)):
            raise lost(self.place, awaited.snapshot, accepted)
        return True

    def check_newest(self, ledger: Ledger) -> None:
        """Compare the newest snapshot that the sink has written with the table's. It may have expired.

        Raises:
            OvertakenError: the table is newer than this version.
            StoreBehindSinkError: another writer has replaced it, or rolled the table back.
        """
        newest, place = ledger.written, self.place
        found = place.record(SNAPSHOTS, newest.snapshot) if newest is not None else None
        if newest is None or (found is not None and found.get("uuid") == newest.uuid):
            return
        if place.latest() != self.number:
            raise OvertakenError
        if newest.snapshot < self.number:
            following = place.record(SNAPSHOTS, newest.snapshot + 1)
            if found is None or following is None or self._names(following, newest):
                return  # expired; a writer that slept may have given its number again
        if not place.files.exists(accepted := ledger.chain.accepted(newest.uuid)):
            raise replaced(place, newest.snapshot, accepted)

    def _names(self, snapshot: Record, written: Written) -> bool:
        """Return whether a snapshot names the file that an earlier one has added: it was made of that one."""
        entries = self.manifests.entries(self.manifests.listed(snapshot))
        return any(record["_FILE"]["_FILE_NAME"] == written.file for record in entries)

    # --- commits -----------------------------------------------------------------------------------------------------

    def commit(self, ledger: Ledger, entries: Sequence[Record], says: Mapping[str, Any]) -> None:
        """Make the memory count, and add these files, in one step. OvertakenError: nothing came of it.

        What if the process dies before the snapshot has its name: nothing happened. Behind it: it is committed, and the
        next process finds it.
        """
        self.settle(ledger)
        if not entries:
            ledger.chain.sweep(ledger.append().number)
            return
        assert self.schema is not None
        if max(self.place.numbers(SCHEMAS)) != self.schema["id"]:
            raise OvertakenError
        manifests, number = self.manifests, self.number + 1
        awaited = Awaited(number, str(uuid.uuid4()), entries[0]["_FILE"]["_FILE_NAME"], ledger.before)
        ledger.written = awaited
        try:
            added = manifests.write(entries, self.partitions.kinds, int(self.schema["id"]))
            rows = sum(record["_FILE"]["_ROW_COUNT"] for record in entries)
            snapshot = self._next(manifests, [added], rows, awaited.uuid, says)
            ledger.chain.keep(ledger.found.number + 1, number)
            document = ledger.append(awaited)
        except OvertakenError:
            manifests.discard()
            raise
        counts = self._created(ledger.chain, snapshot, awaited)
        with suppress(OvertakenError):  # another process has found out the same
            ledger.chain.append(Document(document.number + 1, document.memory if counts else awaited.without, None))
        ledger.chain.sweep(document.number + 1)
        if not counts:
            manifests.discard()
            raise OvertakenError

    def _created(self, chain: Chain, snapshot: Record, awaited: Awaited) -> bool:
        """Create a snapshot, and return whether it is one of the table."""
        try:
            self._create(snapshot)
        except OvertakenError:
            return False
        while True:
            now = type(self).newest(self.place)
            if now is None:
                raise OvertakenError(nothing=False)
            with suppress(OvertakenError):  # another writer was faster than this look
                if now.holds(chain, awaited):
                    self.place.hint()
                    return True
                break
        # Its number had expired since the version was read: no reader looks there, and no other writer may begin there.
        found = self.place.record(SNAPSHOTS, awaited.snapshot)
        if found is not None and found.get("uuid") == awaited.uuid:  # else another writer has replaced it
            self.place.files.remove(self.place.uri(SNAPSHOTS, f"{SNAPSHOTS}-{awaited.snapshot}"))
        return False

    def settle(self, ledger: Ledger) -> None:
        """Make an awaited snapshot impossible, if it may still come: its number is given to one without rows.

        OvertakenError: it was so, and the table has to be read again.
        """
        if ledger.pending:
            assert self.schema is not None
            manifests, empty = self.manifests, Awaited(self.number + 1, str(uuid.uuid4()), "", None)
            with suppress(OvertakenError, StoreBehindSinkError):  # it is looked at again
                if not self._created(ledger.chain, self._next(manifests, [], 0, empty.uuid, {}), empty):
                    manifests.discard()
            raise OvertakenError

    def _create(self, snapshot: Record) -> None:
        try:
            self.place.create(SNAPSHOTS, snapshot)
        except OvertakenError:  # some file systems repeat a request whose answer was lost
            found = self.place.record(SNAPSHOTS, snapshot["id"])
            if found is None or found.get("uuid") != snapshot["uuid"]:
                raise

    def _next(
        self, manifests: Manifests, added: Sequence[Record], rows: int, token: str, says: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the snapshot after this one, with its lists of manifests written."""
        assert self.schema is not None
        before: Mapping[str, Any] = self.snapshot or {}
        schema_id = int(self.schema["id"])
        base, base_size = manifests.write_list(
            manifests.merged(manifests.listed(self.snapshot), self.partitions.kinds, schema_id)
        )
        delta, delta_size = manifests.write_list(added)
        others = ("indexManifest", "watermark", "nextRowId")
        kept = {name: before[name] for name in others if before.get(name) is not None}
        if before.get("statistics") is not None and before["schemaId"] == schema_id:
            kept["statistics"] = before["statistics"]
        return {
            "version": NEWEST, "id": self.number + 1, "schemaId": schema_id, "baseManifestList": base,
            "baseManifestListSize": base_size, "deltaManifestList": delta, "deltaManifestListSize": delta_size,
            "changelogManifestList": None, "commitUser": _USER, "commitIdentifier": _BATCH, "commitKind": "APPEND",
            "timeMillis": int(time.time() * 1000), "logOffsets": {},
            "totalRecordCount": (before.get("totalRecordCount") or 0) + rows, "deltaRecordCount": rows,
            "changelogRecordCount": 0, **kept, "properties": {f"{_USER}.{key}": str(it) for key, it in says.items()},
            "uuid": token,
        }  # fmt: skip

    def sync(self, ledger: Ledger) -> None:
        """Returns when this version and its memory survive a power cut: their writer may have died before."""
        for folder in (ledger.chain.folder, self.place.uri(SNAPSHOTS)):
            with suppress(FileNotFoundError):
                self.place.files.sync_folders(folder, self.place.root)

    # --- schemas -----------------------------------------------------------------------------------------------------

    def evolve(self, schema: pa.Schema, layout: Layout, ledger: Ledger) -> bool:
        """Add the columns that this version lacks; False: it lacks none. OvertakenError: it is not the newest."""
        new = lacking(schema, self.columns or ())
        if not new.names:
            return False
        self.settle(ledger)
        ledger.append()  # refused if the fence was overtaken: such a process changes no schema
        if self.schema is None:
            self.define(schema, layout)
            return True
        fields, highest = fields_of(new, int(self.schema["highestFieldId"]) + 1)
        self.place.create(
            SCHEMAS,
            {
                **self.schema, "id": int(self.schema["id"]) + 1, "fields": [*self.schema["fields"], *fields],
                "highestFieldId": highest, "timeMillis": int(time.time() * 1000),
            },
        )  # fmt: skip
        return True

    def define(self, schema: pa.Schema, layout: Layout) -> None:
        """Give a table that has no columns yet its own. OvertakenError: another process was faster."""
        fields, highest = fields_of(schema, 0)
        buckets = layout.buckets
        divided = {"bucket": str(buckets.count)} if buckets.count else {}
        divided |= {"bucket-key": ",".join(buckets.key)} if buckets.key else {}
        for each in fields:
            if each["name"] in layout.primary_key:
                each["type"] += REQUIRED
        self.place.create(
            SCHEMAS,
            {
                "version": NEWEST, "id": 0, "fields": fields, "highestFieldId": highest,
                "partitionKeys": list(layout.partition_by), "primaryKeys": list(layout.primary_key),
                "options": {**_OPTIONS, **divided},
                "comment": "", "timeMillis": int(time.time() * 1000),
            },
        )  # fmt: skip
