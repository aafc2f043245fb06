"""Run in tasks: put rows by key, each with a version. Then replace the document, which proves the delivery."""

import sqlite3
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from airflow_ft.protocol.datasets import Dataset, folder
from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.protocol.verify import sample
from airflow_ft.sinks.arrow import flags, masked
from airflow_ft.sinks.base import keyed
from airflow_ft.sinks.base.document import DocumentLedger, OvertakenError
from airflow_ft.sinks.base.json_columns import objects, unsupported, without_text
from airflow_ft.sinks.base.key_texts import ambiguous, keys, named_problems, unfit_type, where
from airflow_ft.sinks.base.keyed import Chunk, KeyedParticipant, judged, kinds_of, pieces, stamps_lost
from airflow_ft.sinks.base.keyed_verify import Change, Found, compare_targets, digest
from airflow_ft.sinks.base.requirements import Finding, Requirement
from drawer_for_airflow import DrawerSink

# 1. The store: a put that leaves newer cards alone, and a document that is replaced by compare-and-set.

CREATED = (
    "CREATE TABLE IF NOT EXISTS cards (drawer TEXT, key TEXT, version INTEGER, number INTEGER, value TEXT,"
    " PRIMARY KEY (drawer, key))",
    "CREATE TABLE IF NOT EXISTS documents (pipeline TEXT, participant TEXT, text TEXT,"
    " PRIMARY KEY (pipeline, participant))",
)
PUT = (
    "INSERT INTO cards VALUES (?, ?, ?, ?, ?) ON CONFLICT (drawer, key) DO UPDATE SET version = excluded.version,"
    " number = excluded.number, value = excluded.value WHERE excluded.version > cards.version"
)
INSERT = "INSERT INTO documents (text, pipeline, participant) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
REPLACE = "UPDATE documents SET text = ? WHERE pipeline = ? AND participant = ? AND text = ?"
RESERVED = "SELECT max(json_extract(text, '$.free')) FROM documents"


@contextmanager
def opened(path):
    """Open a connection that commits each statement, and rolls back on close what is not committed."""
    try:
        uri = f"{Path(path).absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None)) as db:
            yield db
    except sqlite3.Error as error:
        raise SinkUnavailableError(
            f"{path}: {error}.",
            code="file_unusable",
            remedy="Make the file readable and writable, or correct the host of the connection.",
            path=path,
        ) from error


class Documents(keyed.Documents[sqlite3.Connection, str | None]):
    def read(self, pipeline, *, create=False):
        for statement in CREATED if create else ():
            self.client.execute(statement)
        found = None
        if self.client.execute("SELECT 1 FROM sqlite_master WHERE name = 'documents'").fetchone():
            sql = "SELECT text FROM documents WHERE pipeline = ? AND participant = ?"
            found = self.client.execute(sql, (pipeline, self.participant)).fetchone()
        text = found[0] if found else None
        return DocumentLedger(text, f"the document of {pipeline}", plan="", first=0, free=0), text


class Changes(keyed.Changes[Documents, str | None]):
    def replace(self):
        values = (self.ledger.text, self.fence.pipeline, self.documents.participant)
        there = () if self.seen is None else (self.seen,)  # a document that has gone is not made again
        if self.documents.client.execute(REPLACE if there else INSERT, (*values, *there)).rowcount != 1:
            raise OvertakenError


# 2. Which columns and rows fit, and what is put.


def schema_problems_of(sink, schema, name):
    """Yield why rows with these columns do not fit."""
    for problem in named_problems(schema, "key", sink.key_columns, sink.change_column, "a drawer"):
        yield problem.located(sink=name)
    for field in schema:
        if unsupported(field.type):
            yield unfit_type(field, "value on a card").located(sink=name)


def cards(sink, chunk):
    """Yield position, key and value of the rows of a chunk that are not refused. The value of a delete is None."""
    names = [name for name in chunk.rows.schema.names if name != sink.change_column]
    written = ~chunk.deletes
    written[list(chunk.refused)] = False  # a refused value has no text
    columns = [masked(chunk.rows.column(name), flags(written)) for name in names]
    texts = objects(names, columns, chunk.rows.num_rows).to_pylist()
    for at, key in enumerate(keys(sink.parts, chunk.rows).to_pylist()):
        if at not in chunk.refused:
            yield at, key, texts[at] if written[at] else None


# 3. The participant.


@dataclass
class DrawerParticipant(KeyedParticipant[Changes]):
    spec = DrawerSink
    changes = Changes

    def _preflight(self):
        with opened(self.connection.host):
            return {"sqlite": sqlite3.sqlite_version}

    @contextmanager
    def _opened(self, plan):
        with opened(self.connection.host) as db:
            yield Documents(db, self.connection, self.name)

    def _place(self):
        return f"the drawers in {self.connection.host}"

    def _problems(self, sink, schema):
        return schema_problems_of(self.sinks[sink], schema, sink)

    def _unfit(self, sink, rows, deletes):
        found = ambiguous(self.sinks[sink].parts, rows)
        for name in rows.schema.names:
            for wrong, why in without_text(rows.column(name)):
                found |= where(wrong & ~deletes, f"column {name} {why}")
        return found

    def _before_rows(self, db, plan):
        """Reserve a version for each row, once for each plan: above those of all pipelines, and of the clock."""
        kept = db.ledger.others
        if db.ledger.marker(plan.number) is None and kept["plan"] != plan.digest:
            rows = sum(segment.rows.get(name, 0) for segment in plan.segments for name in self.sinks)
            first = max(db.documents.client.execute(RESERVED).fetchone()[0], time.time_ns() // 1000)
            kept.update(plan=plan.digest, first=first, free=first + rows)
        return {}

    def _send(self, db, chunks):
        if db.ledger.others["plan"] != db.plan.digest:
            raise stamps_lost("versions", "The file", db.plan.number)
        first, store = db.ledger.others["first"], db.documents.client
        for chunk in chunks:
            sink, before = self.sinks[chunk.sink], first + chunk.first
            store.execute("BEGIN IMMEDIATE")
            store.executemany(
                PUT,
                ((sink.drawer, key, before + at, db.plan.number, value) for at, key, value in cards(sink, chunk)),
            )
            store.execute("COMMIT")


open_participant = DrawerParticipant.of


# 4. Checks before Spark computes rows, for the doctor; for verify; and the name in lineage.

schema_problems = partial(judged, DrawerSink, schema_problems_of)


def required(pipeline, plan, connection):
    """Yield what must be there before Spark starts; `airflow ft doctor` reads it too."""
    yield Requirement("file", partial(found, connection.host))


def found(path):
    with opened(path) as db:
        return Finding(f"{path}, {db.execute('SELECT count(*) FROM sqlite_master').fetchone()[0]} tables and indexes")


@dataclass
class Cards:
    """The cards of one drawer, for verify."""

    sink: DrawerSink
    documents: Documents
    pipeline: str
    error: str = ""

    def ledger(self):
        return self.documents.read(self.pipeline)[0]

    def changes(self, number, name, reader):
        for _, _, rows in pieces(reader, name):
            deletes, _ = kinds_of(rows, self.sink.change_column)
            for _, key, value in cards(self.sink, Chunk(0, name, rows, deletes, {})):
                yield Change(key, None if value is None else digest(value), sample((key, value)))

    def look_up(self, keys):
        marks = ", ".join("?" * len(keys))
        sql = f"SELECT key, value, number FROM cards WHERE drawer = ? AND value IS NOT NULL AND key IN ({marks})"
        there = self.documents.client.execute(sql, (self.sink.drawer, *keys))
        return {key: Found(digest(value), number) for key, value, number in there}


def verify(delivered, plan, connection, wal):
    with opened(connection.host) as db:
        documents, pipeline = Documents(db, connection, plan.name), delivered[-1].plan.pipeline

        def cards_of(target, readers):
            sink = DrawerSink.all_of(target.plan)[target.name]
            return Cards(
                sink, documents, pipeline, "other pipelines may have replaced its cards" if sink.shared else ""
            )

        return compare_targets(delivered, plan, wal, lambda settings: settings["drawer"], cards_of)


def dataset(settings, connection):
    file = folder(connection.host)
    return Dataset(file.namespace, f"{file.name}.{settings['drawer']}", f"{file.uri}/{settings['drawer']}")
