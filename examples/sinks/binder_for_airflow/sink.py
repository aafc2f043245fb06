"""Run in tasks: write files. Then add them, the marker and the head to a binder, in one new version of it.

The seventh version is the file `versions/0000000007.json`: columns, files, and the documents of all pipelines.
"""

import json
import re
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from airflow_ft.protocol.errors import AirflowFtError, SinkUnavailableError, UnfitTargetError
from airflow_ft.sinks.base.document import DocumentLedger, OvertakenError
from airflow_ft.sinks.base.memory import damaged
from airflow_ft.sinks.base.table_checks import TableChecks
from airflow_ft.sinks.base.table_columns import Column, Format, lacking, type_of
from airflow_ft.sinks.base.table_format import TableParticipant
from airflow_ft.sinks.base.table_sink import folder_dataset, folder_place
from airflow_ft.sinks.files.failures import lacks_links
from airflow_ft.sinks.files.table_rows import TableRows
from airflow_ft.sinks.files.writing import Files
from airflow_ft.wal.filesystem import filesystem
from binder_for_airflow import BinderSink

FORMAT = Format("A binder", "BinderSink", type_of, odd=re.compile("\n"))

# 1. The table: where it is, and its versions, each of which is created once.


@dataclass(frozen=True)
class Place:
    path: Path

    def __str__(self):
        return str(self.path)

    @property
    def files(self):
        return filesystem(self.path.as_uri())

    def uri(self, *names):
        return self.path.joinpath(*names).as_uri()

    def write(self, number, content):
        """Create a version, durably. OvertakenError: another process has created it."""
        uri, data = self.uri("versions", f"{number:010}.json"), json.dumps(content).encode()
        try:
            self.files.write(uri, data)
        except FileExistsError as error:  # also if NFS has lost the reply, and repeats the request
            if self.files.read(uri) != data:
                raise OvertakenError from error
            self.sync()

    def sync(self):
        self.files.sync_folders(self.uri("versions"), self.path.parent.as_uri())


@dataclass(frozen=True)
class Version:
    place: Place
    number: int
    content: dict

    @classmethod
    def newest(cls, place):
        names = [name for name in place.files.names(place.uri("versions")) if re.fullmatch(r"\d{10}\.json", name)]
        if not names:
            others = place.files.names(place.uri())
            if others and "versions" not in others:
                what, remedy = f"{place} has files, and is no binder.", "Choose another folder."
                raise UnfitTargetError(what, code="not_a_table", remedy=remedy, path=str(place))
            return None
        text = place.files.read(place.uri("versions", max(names)))
        with damaged(f"{place}/versions/{max(names)}"):
            return cls(place, int(max(names).removesuffix(".json")), json.loads(text))

    @property
    def columns(self):
        return [Column(*each) for each in self.content["columns"]] or None

    def oddities(self):
        return iter(())

    def ledger(self, group):
        return DocumentLedger(self.content["documents"].get(group), f"the document of {group} in {self.place}")

    def sync(self, ledger):
        self.place.sync()

    def add(self, **changes):
        """Create the next version, with these changes."""
        self.place.write(self.number + 1, self.content | changes)


def columns_of(schema):
    return [[field.name, type_of(field.type), True] for field in schema]


# 2. Files that a try of a step adds to a version.


@dataclass
class Rows(TableRows):
    form = FORMAT
    results = ("files", "folder")

    files: list = field(default_factory=list)
    folder: str = ""

    def _write(self, plan, readers, dead_letters):
        place, name = self.version.place, f"checkpoint-{plan.number}-{uuid.uuid4().hex}"
        self.folder = place.uri(name)
        out = Files(place.files, self.folder, "parquet", "", self.file_bytes, checksums=False)
        written = self._filled(out, readers, dead_letters, lambda rows: out.put("", rows))
        if written:
            place.files.sync_tree(self.folder, place.uri(), {})
        self.files = [f"{name}/{each.path}" for each in written]
        return sum(each.rows for each in written)

    def _made_for(self):
        return self.version.content["columns"]

    def _judged(self, batch):
        rows = FORMAT.cast(batch, self.version.columns)
        return rows, self._empty(rows)

    def _remove(self):
        if self.folder:
            self.version.place.files.remove_tree(self.folder)


# 3. Checks before Spark computes rows, for the doctor, and for verify.


class Checks(TableChecks[Version]):
    sink, form, version = BinderSink, FORMAT, Version

    def at(self, sink, connection, *, quickly=False):
        return Place(sink.path)

    @contextmanager
    def translated_errors(self, place, **where):
        where = {"unconnected": True, **where}
        try:
            yield
        except AirflowFtError as error:
            raise error.located(**where) from error.__cause__
        except OSError as error:
            raise SinkUnavailableError(
                f"{place}: {error}.",
                code="folder_unusable",
                remedy="Mount the folder and make it writable, or correct the path in table=.",
                path=str(place),
            ).located(**where) from error

    def rows(self, place, version, names):
        for name in version.content["files"]:
            with place.files.open(place.uri(*name.split("/"))) as file:
                yield from pq.ParquetFile(file).iter_batches(columns=names)

    def shown(self, place, version):
        return f"{place}, version {version.number}"

    def problems(self, sink, version, schema, name):
        found = list(FORMAT.unholdable(sink.table, schema, name))
        if not found and version is not None and version.columns:
            found = FORMAT.unfit(sink.table, schema, version.columns, name, evolves=sink.schema_evolution)
        return found


CHECKS = Checks()
required, schema_problems, verify = CHECKS.required, CHECKS.schema_problems, CHECKS.verify
dataset, place = folder_dataset, folder_place


# 4. The participant.


@dataclass
class BinderParticipant(TableParticipant[Version, Rows]):
    checks = CHECKS
    kept = "its versions"

    def _require_beginning(self):
        if not self.place.files.has_links(self.place.uri(f"probe-{uuid.uuid4().hex}")):
            raise lacks_links(str(self.place), "create a version once")

    def _made(self, schema):
        self.place.write(1, {"columns": columns_of(schema or ()), "files": [], "documents": {}})
        return Version.newest(self.place)

    def _staged(self, version, group, rank):
        return Rows(version, self.sink_name, self.sink.file_bytes)

    def _commit_onto(self, version, group, ledger, staged, says):
        content = version.content
        documents = content["documents"] | {group: ledger.text}
        version.add(files=content["files"] + staged.files, documents=documents, says=dict(says))

    def _evolve(self, version, group, schema):
        if not (new := lacking(schema, version.columns or ())).names:
            return False
        version.add(columns=version.content["columns"] + columns_of(new))
        return True


open_participant = BinderParticipant.of
