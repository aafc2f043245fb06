"""Answers requests for `tools.paimon` with pypaimon, by the interpreter of .local/paimon.

It imports nothing of this repository. A request is a line of JSON on standard input, and so is its answer on standard
output. Rows travel in files of Arrow's IPC format.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
from pypaimon import CatalogFactory, Schema


class Table:
    """The table `database.name` of a warehouse, opened for one request."""

    def __init__(self, warehouse: str, table: str) -> None:
        self._catalog = CatalogFactory.create({"warehouse": warehouse})
        self._name = table

    def _open(self, options: Mapping[str, str] | None = None) -> Any:
        table = self._catalog.get_table(self._name)
        return table.copy(dict(options)) if options else table

    def create(self, rows: str, partitions: list[str], keys: list[str], options: dict[str, str]) -> None:
        schema = feather.read_table(rows).schema
        self._catalog.create_database(self._name.partition(".")[0], True)
        made = Schema.from_pyarrow_schema(schema, partition_keys=partitions, primary_keys=keys, options=options)
        self._catalog.create_table(self._name, made, False)

    def append(self, rows: str) -> None:
        self._write(self._open().new_batch_write_builder(), feather.read_table(rows))

    def append_asleep(self, rows: str, asleep: str, awake: str) -> None:
        """Add rows. Between the look whether the snapshot's name is given and the rename, wait for the file `awake`.

        The file `asleep` says that it waits.
        """
        rename = Path.rename

        def late(path: Path, target: Path) -> Path:
            if Path(target).parent.name == "snapshot" and not Path(asleep).exists():
                Path(asleep).touch()
                while not Path(awake).exists():
                    time.sleep(0.01)
            return rename(path, target)

        Path.rename = late  # type: ignore[method-assign, assignment]
        try:
            self.append(rows)
        finally:
            Path.rename = rename  # type: ignore[method-assign]

    def overwrite(self, rows: str) -> None:
        """Replace all rows of all partitions."""
        table = self._open({"dynamic-partition-overwrite": "false"})
        self._write(table.new_batch_write_builder().overwrite({}), feather.read_table(rows))

    def append_parquet(self, folder: str) -> float:
        """Add the rows of Parquet files; returns the seconds that it took."""
        began = time.monotonic()
        self._write(self._open().new_batch_write_builder(), pq.read_table(folder))
        return time.monotonic() - began

    def _write(self, builder: Any, rows: pa.Table) -> None:
        write, commit = builder.new_write(), builder.new_commit()
        try:
            write.write_arrow(rows)
            commit.commit(write.prepare_commit())
        finally:
            write.close()
            commit.close()

    def rows(self, into: str, where: dict[str, Any]) -> None:
        """All rows of the newest snapshot; `where`: those with these values alone, as statistics find them."""
        reading = self._open().new_read_builder()
        if where:
            predicates = reading.new_predicate_builder()
            reading = reading.with_filter(
                predicates.and_predicates([predicates.equal(*each) for each in where.items()])
            )
        found = reading.new_read().to_arrow(reading.new_scan().plan().splits())
        feather.write_feather(found if isinstance(found, pa.Table) else pa.table({}), into, compression="uncompressed")

    def files(self) -> list[str]:
        """The data files of the newest snapshot."""
        reading = self._open().new_read_builder()
        return [file.file_path for split in reading.new_scan().plan().splits() for file in split.files]

    def snapshots(self) -> list[dict[str, Any]]:
        return [
            {"id": each.id, "kind": each.commit_kind, "user": each.commit_user, "properties": each.properties or {}}
            for each in self._open().snapshot_manager().list_snapshots()
        ]

    def tags(self) -> list[str]:
        return [str(each) for each in self._open().list_tags()]

    def rollback(self, to: int) -> None:
        self._open().rollback_to(to)

    def drop(self) -> None:
        self._catalog.drop_table(self._name, True)

    def rename(self, to: str) -> None:
        self._catalog.rename_table(self._name, to)

    def alter(self, add: dict[str, str], options: dict[str, str]) -> None:
        """Add columns, name -> type in SQL, and set options."""
        from pypaimon.schema.data_types import AtomicType
        from pypaimon.schema.schema_change import SchemaChange

        changes = [SchemaChange.add_column(name, AtomicType(kind)) for name, kind in add.items()]
        changes += [SchemaChange.set_option(name, value) for name, value in options.items()]
        self._catalog.alter_table(self._name, changes, False)


def answer(request: dict[str, Any]) -> Any:
    """Do what one request asks for."""
    call: Callable[..., Any] = getattr(Table(request.pop("warehouse"), request.pop("table")), request.pop("do"))
    return call(**request)


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    for line in sys.stdin:
        try:
            found = {"found": answer(json.loads(line))}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
