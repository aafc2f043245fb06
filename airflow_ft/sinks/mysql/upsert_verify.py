"""Compare a table of the strategy `upsert` with the log: for each key, the newest change in the log.

The log is replayed, by the very code that delivers, into a temporary table with the target's types and key; the keys
of all deletes go into a second one. A key in the second alone was deleted last. Each key is then looked up in the
target, whose version column holds the checkpoint that wrote the row, and the delivered columns are compared by digest.

A checkpoint that is not compared may have changed a key since: it is newer than those, or lies between them. (Each
plan names the number before it.) A row shows that by its version; a deleted row shows nothing. Such keys count as not
known, and are no difference. Memory is bounded, and the target is not locked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_ft.protocol.verify import SAMPLES, Delivered, Difference, SinkReport, sample
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.changes import DeletedKeys
from airflow_ft.sinks.base.keyed_verify import (
    CHANGED,
    DIFFERENCES,
    LACKING,
    LEFT,
    SAME,
    UNKNOWN,
    blind_through,
    notes,
)
from airflow_ft.sinks.mysql.catalog import Column
from airflow_ft.sinks.mysql.failures import NO_SUCH_TABLE, suppressed
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.load import ONE_BY_ONE
from airflow_ft.sinks.mysql.naming import TableName, quote
from airflow_ft.sinks.mysql.plain_text import definitions, digest, in_order, without_labels
from airflow_ft.sinks.mysql.requirements import fit_target
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.upsert import Upserter
from airflow_ft.sinks.mysql.vote import Target

_THERE, _GONE = "airflow_ft_verify_there", "airflow_ft_verify_gone"


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The queries over target `t`, the replayed log `e`, and the deleted keys `g`."""

    session: Session
    target: Target
    sink: MySqlSink
    columns: Sequence[Column]  # that all checkpoints have delivered
    numbers: Sequence[int]
    blind: int  # later deliveries than this are all compared
    deletes: bool  # a delivery may delete rows

    @property
    def _keys(self) -> list[str]:
        return [quote(key) for key in self.sink.key_columns]

    @property
    def _version(self) -> str:
        return quote(self.sink.version_column or "")

    def _where(self, table: str) -> str:
        return TableName(self.target.table.name.schema, table).sql

    def _same_key(self, one: str, other: str) -> str:
        return " AND ".join(f"{one}.{key} = {other}.{key}" for key in self._keys)

    def _newer(self, alias: str) -> str:
        """A checkpoint that is not compared has written the row."""
        numbers = ", ".join(str(number) for number in self.numbers)
        return (
            f"t.{self._version} > {alias}.{self._version} AND {alias}.{self._version} <= {self.blind}"
            f" AND t.{self._version} NOT IN ({numbers})"
        )

    def _there(self) -> tuple[str, str]:
        """The verdict on each key that should be there, and where it is found."""
        absent = f"t.{self._keys[0]} IS NULL"
        equal = f"t.{self._version} = e.{self._version}"
        # Equal keys may differ as texts, by a collation that ignores case. The row keeps the first spelling.
        keys = {key.lower() for key in self.sink.key_columns}
        if others := [column for column in self.columns if column.name.lower() not in keys]:
            equal += f" AND {digest('t', others)} = {digest('e', others)}"
        verdict = (
            f"CASE WHEN {absent} AND e.{self._version} <= {self.blind if self.deletes else 0} THEN '{UNKNOWN}'"
            f" WHEN {absent} THEN '{LACKING}' WHEN {self._newer('e')} THEN '{UNKNOWN}'"
            f" WHEN {equal} THEN '{SAME}' ELSE '{CHANGED}' END"
        )
        target = self.target.table.name.sql
        tables = f"{self._where(_THERE)} e LEFT JOIN {target} t ON {self._same_key('t', 'e')} WHERE 1 = 1"
        return verdict, tables

    def _gone(self) -> tuple[str, str]:
        verdict = (
            f"CASE WHEN t.{self._keys[0]} IS NULL THEN '{SAME}' WHEN {self._newer('g')} THEN '{UNKNOWN}'"
            f" ELSE '{LEFT}' END"
        )
        tables = (
            f"{self._where(_GONE)} g LEFT JOIN {self._where(_THERE)} e ON {self._same_key('e', 'g')}"
            f" LEFT JOIN {self.target.table.name.sql} t ON {self._same_key('t', 'g')} WHERE e.{self._keys[0]} IS NULL"
        )
        return verdict, tables

    def counts(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Keys by verdict and number: how many, and how many of them have a row in the target."""
        found: dict[tuple[str, int], tuple[int, int]] = {}
        for (verdict, tables), alias in ((self._there(), "e"), (self._gone(), "g")):
            for word, number, keys, rows in self.session.rows(
                f"SELECT {verdict} AS verdict, {alias}.{self._version} AS number, COUNT(*), COUNT(t.{self._keys[0]})"
                f" FROM {tables} GROUP BY 1, 2"
            ):
                place = (str(word), int(number))
                before = found.get(place, (0, 0))
                found[place] = (before[0] + int(keys), before[1] + int(rows))
        return found

    def samples(self, verdict: str, number: int) -> tuple[str, ...]:
        """Some of the rows: as the log has them; of deletes the key."""
        case, tables = self._gone() if verdict == LEFT else self._there()
        alias = "g" if verdict == LEFT else "e"
        names = self._keys if verdict == LEFT else [quote(column.name) for column in self.columns]
        rows = self.session.rows(
            f"SELECT {', '.join(f'{alias}.{name}' for name in names)} FROM {tables} AND {alias}.{self._version} = %s"
            f" AND {case} = %s ORDER BY {', '.join(f'{alias}.{key}' for key in self._keys)} LIMIT {SAMPLES}",
            (number, verdict),
        )
        return tuple(sample(row) for row in rows)


def verify_upserts(
    report: SinkReport,
    session: Session,
    target: Target,
    sink: MySqlSink,
    delivered: Sequence[Delivered],
    ledger: Ledger,
    wal: WalReader,
    limits: Limits,
    deletes: bool,
) -> SinkReport:
    """Return the report with the counts of keys; `deletes`: a delivery may delete rows.

    Raises errors of the server and of the write-ahead log.
    """
    target = fit_target(session, target, sink)
    parts = _parts(delivered, target, wal)
    if not parts:
        return replace(report, expected=0)
    each = [[column.name for column in target.written(reader.schema(target.sink))] for _, reader in parts]
    union = list(dict.fromkeys(name for names in each for name in names))
    common = [name for name in union if all(name in names for names in each)]
    keys, version = list(sink.key_columns), sink.version_column or ""
    _create(session, target, _THERE, [*union, version], keys)
    _create(session, target, _GONE, [*keys, version], keys)
    for number, reader in parts:
        _replay(session, target, sink, number, reader, limits)
    columns = [column for name in common if (column := target.table.column(name)) is not None]
    numbers = [each.plan.number for each in delivered]
    blind = _blind(session, ledger, delivered)
    comparison = _Comparison(session, target, sink, columns, numbers, blind, deletes)
    counts = comparison.counts()
    there = int(session.value(f"SELECT COUNT(*) FROM {target.table.name.sql}"))
    wrong = {place: keys for place, (keys, _) in sorted(counts.items()) if place[0] in DIFFERENCES}
    differences = tuple(
        Difference(number, DIFFERENCES[verdict], found, comparison.samples(verdict, number))
        for (verdict, number), found in wrong.items()
    )
    return replace(
        report,
        expected=sum(keys for keys, _ in counts.values()),
        missing=sum(wrong.values()),
        other=max(0, there - sum(rows for _, rows in counts.values())),
        differences=differences,
        notes=tuple(_notes(report.expected, counts, union, common)),
    )


def _parts(delivered: Sequence[Delivered], target: Target, wal: WalReader) -> list[tuple[int, SegmentReader]]:
    """The segments in the order of their delivery, each with the number that delivered it."""
    found = []
    for each in sorted(delivered, key=lambda one: one.plan.number):
        for segment in each.plan.segments:
            reader = wal.open(segment)
            if target.sink in reader.sinks() and reader.files(target.sink):
                found.append((each.plan.number, in_order(reader, target)))
    return found


def _create(session: Session, target: Target, name: str, columns: Sequence[str], keys: Sequence[str]) -> None:
    table = TableName(target.table.name.schema, name).sql
    session.run(f"DROP TEMPORARY TABLE IF EXISTS {table}")
    defined = [*definitions(target, columns, keys), f"PRIMARY KEY ({', '.join(map(quote, keys))})"]
    session.run(
        f"CREATE TEMPORARY TABLE {table} ({', '.join(defined)}) ENGINE=InnoDB"
        f" SELECT {', '.join(map(quote, columns))} FROM {target.table.name.sql} WHERE 1 = 0"
    )


def _replay(
    session: Session, target: Target, sink: MySqlSink, number: int, reader: SegmentReader, limits: Limits
) -> None:
    schema = target.table.name.schema
    target = without_labels(target)
    there = replace(target, table=replace(target.table, name=TableName(schema, _THERE)))
    Upserter(session, limits, ONE_BY_ONE, {target.sink: sink}, number).send(reader, there)
    if sink.change_column is None:
        return
    wanted = {key.lower() for key in sink.key_columns}
    written = target.written(reader.schema(target.sink))
    keys = tuple(column.source for column in written if column.name.lower() in wanted)
    gone = replace(target, table=replace(target.table, name=TableName(schema, _GONE)))
    deletes = DeletedKeys(reader, sink.change_column, keys)
    Upserter(session, limits, ONE_BY_ONE, {target.sink: replace(sink, change_column=None)}, number).send(deletes, gone)


def _blind(session: Session, ledger: Ledger, delivered: Sequence[Delivered]) -> int:
    head = None
    with suppressed(NO_SUCH_TABLE):
        head = ledger.on(session).head()
    return blind_through(delivered, head.last_delivered if head else None)


def _notes(
    rows: int, counts: Mapping[tuple[str, int], tuple[int, int]], union: Sequence[str], common: Sequence[str]
) -> Iterator[str]:
    unknown = sum(found for (verdict, _), (found, _) in counts.items() if verdict == UNKNOWN)
    yield from notes(rows, sum(found for found, _ in counts.values()), unknown)
    if left_out := [name for name in union if name not in common]:
        yield f"not compared, since only some checkpoints delivered them: {', '.join(left_out)}"
