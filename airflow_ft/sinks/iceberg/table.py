"""One version of an Iceberg table, and commits onto exactly that one.

The requirements of a commit (REST specification) know references, ids and schemas, but no property. Two writers who
change a property alone do not meet. So the sink's memory lies in the summary of a snapshot, to which a branch of its
own points. Each of its commits demands that the branch still points to the snapshot that was read.

A commit adds two snapshots. One has the rows, and `main` moves to it. The other has no files: it is the new memory, and
the branch moves to it. The memory that was there before leaves the table in the same commit, so there is one at a time,
and it keeps no data alive. `expire_snapshots` keeps what a branch points to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import pyarrow as pa
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import CommitTableResponse, Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from airflow_ft.protocol.errors import UnfitTargetError
from airflow_ft.sinks.base.document import DocumentLedger, OvertakenError
from airflow_ft.sinks.base.table_columns import Column, lacking, unsupported
from airflow_ft.sinks.iceberg.catalog import Connected
from airflow_ft.sinks.iceberg.columns import new_schema, of_table, partition
from airflow_ft.sinks.iceberg.durable import sync

DOCUMENT = "airflow-ft.document"
"""The property of a snapshot's summary that holds head and markers."""
_FOR_EVER = 2**63 - 1
_OLDER = "older than last sequence number"
"""What catalogs say of a snapshot whose number was given to another one meanwhile."""
_MAPPING = TableProperties.DEFAULT_NAME_MAPPING
_MERGES = TableProperties.MANIFEST_MERGE_ENABLED
_MADE = {TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true"}
"""Properties of a table that is made here: of the file that each commit leaves, the last hundred are kept."""


@dataclass(frozen=True)
class Version:
    """One version of a table."""

    place: Connected
    table: Table

    @classmethod
    def newest(cls, place: Connected) -> Self | None:
        """None: there is no table."""
        table = place.load()
        return cls(place, table) if table is not None else None

    @classmethod
    def made(cls, place: Connected, schema: pa.Schema | None, partition_by: Sequence[str]) -> Self:
        """Create a table; without a schema one that has no columns yet. OvertakenError: another process was faster."""
        namespace = place.identifier[:-1]
        if not place.catalog.namespace_exists(namespace):
            with suppress(NamespaceAlreadyExistsError):
                place.catalog.create_namespace(namespace)
        made = new_schema(schema if schema is not None else pa.schema([]))
        spec = partition(made, partition_by if schema is not None else ())
        mapping = {_MAPPING: made.name_mapping.model_dump_json()}
        try:
            table = place.catalog.create_table(
                place.identifier, schema=made, partition_spec=spec, properties={**_MADE, **mapping}
            )
        except (TableAlreadyExistsError, CommitFailedException) as error:
            raise OvertakenError from error
        return cls(place, table)

    @cached_property
    def columns(self) -> list[Column]:
        return of_table(self.table.schema())

    def new_name(self, name: str) -> str:
        """Return the current name of the column that was last called `name`; "": there was none, or it is dropped."""
        now = {field.field_id: field.name for field in self.table.schema().fields}
        former = {each.name: each.field_id for old in self.table.metadata.schemas for each in old.fields}
        return now.get(former.get(name, -1), "")

    @property
    def spec(self) -> PartitionSpec:
        return self.table.metadata.spec()

    @property
    def mapping(self) -> str:
        """Return the property that finds columns in files without field ids, as it is; "": there is none."""
        return self.table.metadata.properties.get(_MAPPING, "")

    def folders(self) -> list[str]:
        """Return the folders that the files of a commit are written to."""
        provider = self.table.location_provider()
        files = (provider.new_data_location("rows"), provider.new_metadata_location("list"))
        return [file.rpartition("/")[0] for file in files]

    def memory(self, branch: str) -> IcebergSnapshot | None:
        """The snapshot that a branch points to; None: there is no such branch."""
        return self.table.metadata.snapshot_by_name(branch)

    def ledger(self, branch: str) -> DocumentLedger:
        """Return what this version remembers."""
        found = self.memory(branch)
        text = found.summary.additional_properties.get(DOCUMENT) if found is not None and found.summary else None
        return DocumentLedger(text, f"the summary of branch {branch!r} of {self.place}")

    def oddities(self) -> Iterator[UnfitTargetError]:
        """Yield what keeps rows from being added here."""
        metadata = self.table.metadata
        if metadata.format_version > 2:
            yield _unsupported(f"the table has format version {metadata.format_version}", "format-version")
        file_format = metadata.properties.get(TableProperties.WRITE_FILE_FORMAT, "parquet").lower()
        if file_format != "parquet":
            yield _unsupported(f"the table has files of {file_format}", TableProperties.WRITE_FILE_FORMAT)

    def sync(self, _: DocumentLedger) -> None:
        """Returns when this version survives a power cut; its files were synced before its commit."""
        sync([self.table.metadata_location], missing_ok=True)

    # --- commits -----------------------------------------------------------------------------------------------------

    def commit(self, branch: str, ledger: DocumentLedger, files: Sequence[DataFile], says: Mapping[str, str]) -> None:
        """Add files, and replace the memory, in one commit. OvertakenError: it is not the newest version any more.

        What if the process dies before the catalog has the commit: nothing happened. Behind it: it is committed, and
        the next one finds the marker.
        """
        metadata, before = self.table.metadata, self.memory(branch)
        main = metadata.snapshot_by_name(MAIN_BRANCH)
        transaction = self.table.transaction()
        # A table without snapshots knows no branch but main, not even as one that must not be there (pyiceberg).
        moves_main = bool(files) or not metadata.snapshots
        demands: list[TableRequirement] = [AssertTableUUID(uuid=metadata.table_uuid)]
        written: list[str] = []
        if moves_main:
            self._append(transaction, files, says, written)
            demands += [
                _at(MAIN_BRANCH, main),
                AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
                AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
            ]
        if metadata.snapshots:
            demands.append(_at(branch, before))
        memory = self._remember(transaction, {**says, DOCUMENT: ledger.text}, written)
        moved = {"ref-name": branch, "type": "branch", "snapshot-id": memory, "max-ref-age-ms": _FOR_EVER}
        updates: list[TableUpdate] = [*transaction._updates, SetSnapshotRefUpdate.model_validate(moved)]
        if before is not None:
            updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [before.snapshot_id]}))
        sync([*written, *(file.file_path for file in files)])
        done = self._commit(demands, updates)
        now = done.metadata_location
        if before is not None:
            with suppress(Exception):  # no version names it any more
                self.table.io.delete(before.manifest_list)
        sync([now], missing_ok=True)
        self._require_mapping(files, done.metadata)

    def _require_mapping(self, files: Sequence[DataFile], after: TableMetadata) -> None:
        """Raise if adopted files are read by another mapping than the one they were judged by."""
        judged = self.mapping
        if files and judged and self.spec.is_unpartitioned() and after.properties.get(_MAPPING) != judged:
            what = f"others changed the property {_MAPPING} of {self.place} during the commit, and files need it."
            remedy = f"Set the property {_MAPPING} to {judged} again. The rows are delivered."
            raise UnfitTargetError(what, code="table_setting_unsafe", remedy=remedy, setting=_MAPPING)

    def _append(
        self, transaction: Transaction, files: Sequence[DataFile], says: Mapping[str, str], written: list[str]
    ) -> None:
        """A snapshot of main with these files; manifests are put together when they are many."""
        append = transaction.update_snapshot(snapshot_properties=dict(says), branch=MAIN_BRANCH)
        producer = append.merge_append()
        # As Iceberg's own writers have it by default, and pyiceberg has not.
        producer._merge_enabled = self.table.metadata.properties.get(_MERGES, "true").lower() == "true"
        for file in files:
            producer.append_data_file(file)
        producer.commit()  # into the transaction
        written += [*producer._written_manifests, *producer._written_manifest_lists]

    def _remember(self, transaction: Transaction, says: Mapping[str, str], written: list[str]) -> int:
        """A snapshot without files and without parents; returns its id."""
        producer = transaction.update_snapshot(snapshot_properties=dict(says), branch=None).fast_append()
        producer._parent_snapshot_id = None
        producer.commit()  # into the transaction
        written += producer._written_manifest_lists
        return int(producer.snapshot_id)

    def _commit(self, demands: Sequence[TableRequirement], updates: Sequence[TableUpdate]) -> CommitTableResponse:
        """Return the new version's metadata. OvertakenError: what was demanded does not hold any more."""
        catalog, base = self.place.catalog, self.table.metadata
        try:
            done = catalog.commit_table(self.table, tuple(demands), tuple(updates))
        except (CommitFailedException, TableAlreadyExistsError, NoSuchTableError) as error:
            raise OvertakenError(nothing=False) from error
        except (ValueError, BadRequestError) as error:
            if _OLDER not in str(error):
                raise
            raise OvertakenError(nothing=False) from error  # another branch has moved, of which nothing is demanded
        if isinstance(catalog, MetastoreCatalog):  # else the server does it
            with suppress(Exception):
                catalog._delete_old_metadata(self.table.io, base, done.metadata)
        return done

    def evolve(self, schema: pa.Schema, partition_by: Sequence[str], branch: str) -> bool:
        """Add the columns that the table lacks, and to one without columns its partitions; False: it lacks none.

        OvertakenError: it is not the newest version any more. UnfitTargetError: another column had the name before.
        """
        new = lacking(schema, self.columns)
        if not new.names:
            return False
        former = {name for each in self.table.metadata.name_mapping() or () for name in each.names}
        for name in new.names:
            if name in former:  # adopted files have no ids, so their values would move into the new column
                what = f"the name {name!r} belonged to another column of {self.place}, and files still have it."
                now = self.new_name(name)
                remedy = f"Rename the column in the job{f' to {now}' if now else ''}, as in the table."
                raise UnfitTargetError(what, code="column_missing", remedy=remedy, column=name)
        transaction = self.table.transaction()
        with transaction.update_schema() as update:
            update.union_by_name(new_schema(new))
        if not self.columns and partition_by:
            with transaction.update_spec() as spec:
                for field in partition(transaction.table_metadata.schema(), partition_by).fields:
                    source = transaction.table_metadata.schema().find_column_name(field.source_id)
                    spec.add_field(str(source), field.transform, field.name)
        if not self.columns:  # else pyiceberg adds to the mapping, which may have former names of columns
            mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
            transaction.set_properties({_MAPPING: mapping})
        # The branch too: a process whose fence was overtaken since the read changes no schema.
        demands = (
            AssertTableUUID(uuid=self.table.metadata.table_uuid),
            _at(branch, self.memory(branch)),
            *transaction._requirements,
        )
        sync([self._commit(demands, transaction._updates).metadata_location], missing_ok=True)
        return True


def _at(branch: str, snapshot: IcebergSnapshot | None) -> AssertRefSnapshotId:
    """Return the demand that a branch points to a snapshot; None: that there is no such branch."""
    found = snapshot.snapshot_id if snapshot is not None else None
    return AssertRefSnapshotId.model_validate({"ref": branch, "snapshot-id": found})


def _unsupported(what: str, setting: str) -> UnfitTargetError:
    return unsupported(what, "Deliver into another table, and copy the rows from there.", setting=setting)
