"""The vote on rows and schema before the commit point, from the manifest and information_schema.

Rows are read for two purposes only. One is to find values that no minimum or maximum shows: digits that a column would
cut off, blanks that CHAR would drop. The other is to name one refused row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, together
from airflow_ft.protocol.lookup import did_you_mean
from airflow_ft.protocol.write_ahead_log import ColumnStatistics, SegmentReader
from airflow_ft.sinks.arrow import booleans, decoded, decoded_type, is_binary, is_text
from airflow_ft.sinks.base.columns import Check, Misfits, Objection
from airflow_ft.sinks.mysql.catalog import VALID_DATE, Column, Table, read_table, whole_name
from airflow_ft.sinks.mysql.column_fit import SERVER_JUDGES, judge
from airflow_ft.sinks.mysql.encoding import TargetColumn, form_of
from airflow_ft.sinks.mysql.labels import shown
from airflow_ft.sinks.mysql.limits import packet_remedy
from airflow_ft.sinks.mysql.naming import MAX_IDENTIFIER, is_column_name, quote
from airflow_ft.sinks.mysql.parameters import row_sizes
from airflow_ft.sinks.mysql.server_texts import Question, Repertoire, questions, repertoires
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.value_checks import NULL_IN_A_DELETE, null_checks


@dataclass(frozen=True, slots=True)
class Target:
    """A sink's table. Columns of the rows go into its columns of the same name.

    `ignored` are source columns that are not written; of the table's columns (in lower case) `own` are filled by the
    sink itself, and `required` must come from the rows. `only_keys`: the rows are deletes, of which nothing but the key
    is sent. `row_limit`: bytes that a row may have in an INSERT (0: any). `judged_when_sent`: the table was changed
    since the vote, and rows that do not fit are set aside. When rows are to be judged (`to_judge`), `repertoires` are
    of the character sets that lack characters, and `questions`, by column, what the server must be asked of texts.
    """

    sink: str
    table: Table
    timestamps_to_2106: bool
    max_allowed_packet: int
    ignored: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    only_keys: bool = False
    judged_when_sent: bool = False
    row_limit: int = 0
    repertoires: Mapping[str, Repertoire] = field(default_factory=dict)
    questions: Mapping[str, Question] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of all that the judgement depends on: while it stays the same, the judgement holds."""
        return self.table.fingerprint + ("+2106" if self.timestamps_to_2106 else "")

    def to_judge(self, session: Session, ask: Callable[[], Session] | None = None) -> Target:
        """Return the target with the characters that its columns can hold.

        `ask` opens sessions for questions that only the server can answer; None: the delivering transaction finds out.
        """
        charsets = (column.charset for column in self.table.columns.values())
        asked = questions(session, self.table, ask) if ask is not None else {}
        return replace(self, repertoires=repertoires(session, charsets), questions=asked)

    def written(self, schema: pa.Schema) -> list[TargetColumn]:
        """The columns to write for a segment's schema; raises what `mapped` has found."""
        columns, problems = self.mapped(schema)
        if problems:
            raise together(problems)
        return columns

    def mapped(self, schema: pa.Schema) -> tuple[list[TargetColumn], list[AirflowFtError]]:
        """The columns to write for a schema, and why others cannot be written.

        UnfitTargetError where a change of the table would do; DeclinedError where the job or the sink must change.
        """
        if duplicates := sorted({name for name in schema.names if schema.names.count(name) > 1}):
            what = f"the rows have several columns named {duplicates[0]!r}."
            remedy = "Rename them in the job."
            return [], [self.misfits.of_rows(what, "column_ambiguous", remedy, column=duplicates[0])]
        problems: list[AirflowFtError] = []
        columns: list[TargetColumn] = []
        seen: dict[str, str] = {}
        for source in schema.names:
            if source in self.ignored:
                continue
            kind, column = schema.field(source).type, self.table.column(source)
            if column is None and not is_column_name(source):
                what = f"no table can have a column called {source!r}."
                remedy = f"Rename it in the job: 1 to {MAX_IDENTIFIER} characters, and no blank at the end."
                problems.append(self.misfits.of_rows(what, "name_invalid", remedy, column=source))
                continue
            if column is None:
                remedy = f"Add the column {source} to {self.table.name} (its values are {kind}), or leave it out in the"
                remedy += " job."
                known = (each.name for each in self.table.columns.values())
                problems.append(self.misfits.missing(source, source, known, remedy))
                continue
            if column.name.lower() in self.own:
                problems.append(self.misfits.reserved(source, column.name, f"Leave out {source} in the job."))
            if (first := seen.setdefault(column.name, source)) != source:
                what, remedy = self.misfits.ambiguous(first, source), "Rename or drop one of them in the job."
                problems.append(self.misfits.of_rows(what, "column_ambiguous", remedy, column=source))
            form = form_of(kind, bits=column.type == "bit")
            columns.append(TargetColumn(source, column.name, form, column.labels))
        if lacking := sorted(self.required - {name.lower() for name in seen}):
            what = f"the rows have no column for {', '.join(lacking)}, which is in the key."
            what += f" They have: {', '.join(schema.names)}."
            remedy = did_you_mean(lacking[0], [each for each in schema.names if each.lower() not in self.required])
            remedy += f"Add {', '.join(lacking)} to the job's result."
            problems.append(self.misfits.of_rows(what, "job_column_missing", remedy, column=lacking[0]))
        return columns, problems

    def judge(self, kind: pa.DataType, column: Column, source: str) -> Objection | Sequence[Check]:
        """Return whether values of this type, which the rows call `source`, go into the column; see `column_fit`."""
        late = self.timestamps_to_2106
        return judge(kind, column, source=source, timestamps_to_2106=late, repertoires=self.repertoires)

    @property
    def misfits(self) -> Misfits:
        """Errors for this table."""
        return Misfits(str(self.table.name), self.sink)


def read_target(session: Session, name: str, sink: MySqlSink, schema: str) -> Target:
    """The table of the sink of that name, in the connection's `schema` where it names none. Raises as `read_table`."""
    try:
        table = read_table(session, whole_name(sink.table, schema))
    except SinkAccessError as error:
        raise error.located(sink=name) from None
    late = session.is_mariadb and session.version >= (11, 5, 1)
    return Target(name, table, late, session.max_allowed_packet)


@dataclass(frozen=True, slots=True)
class Verdict:
    """No objection so far: notes for people, and the checks that only the rows can decide (`check_rows`)."""

    columns: Sequence[TargetColumn]
    notes: Sequence[str]
    undecided: Sequence[tuple[str, Column, Check]]


def schema_problems(target: Target, schema: pa.Schema) -> list[AirflowFtError]:
    """All that speaks against rows of this schema, whatever their values; of the types that `mapped` explains."""
    columns, problems = target.mapped(schema)
    if problems and not columns:
        return problems
    if not target.only_keys:
        problems += _unwritten(target, columns)
    for written in columns:
        column = target.table.column(written.name)
        assert column is not None
        name = f"{target.table.name}.{column.name}"
        if column.generated:
            remedy = f"Leave {written.source} out of the rows, or make {column.name} a plain column."
            problems.append(target.misfits.generated(written.source, column.name, remedy))
            continue
        verdict = target.judge(schema.field(written.source).type, column, written.source)
        if isinstance(verdict, Objection):
            say = target.misfits.of_table if verdict.by_table else target.misfits.of_rows
            what, more = f"{verdict.found} ({name}).", {"column": written.source, "allowed": column.full_type}
            problems.append(say(what, verdict.code, verdict.remedy, **more))
    return problems


def check_segment(target: Target, reader: SegmentReader) -> Verdict:
    """Judges one segment's rows of one sink by schema and statistics.

    Raises:
        DeclinedError: rows or schema cannot be accepted; names column, what was found and allowed, and one row.
        UnfitTargetError: the same, where a change of the table would do.
        SinkAccessError: a value is larger than the server's max_allowed_packet.
    """
    schema = reader.schema(target.sink)
    if not schema.names:  # the job returned nothing for this sink
        return Verdict((), (), ())
    if problems := schema_problems(target, schema):
        raise together(problems)
    columns = target.written(schema)
    statistics = reader.statistics(target.sink)
    undecided: list[tuple[str, Column, Check]] = []
    notes: list[str] = []
    for written in columns:
        column = target.table.column(written.name)
        assert column is not None
        kind = schema.field(written.source).type
        known = statistics.get(written.source)
        _check_size(target, written.source, kind, known)
        for check in _checks(target, kind, column, written.source):
            if check.by_statistics is None or known is None:
                undecided.append((written.source, column, check))
            elif check.by_statistics(known):
                _decline(target, reader, written.source, column, check)
        if column.type in SERVER_JUDGES:
            notes.append(f"{target.table.name}.{column.name} ({column.type}): only the server can check the values")
        if pa.types.is_timestamp(kind) and kind.tz is None and column.type == "timestamp":
            notes.append(f"{target.table.name}.{column.name}: timestamps without a zone are taken as UTC")
    return Verdict(columns, notes, undecided)


def _checks(target: Target, kind: pa.DataType, column: Column, source: str) -> Sequence[Check]:
    """All conditions on the values of a column whose type fits."""
    verdict = target.judge(kind, column, source)
    assert not isinstance(verdict, Objection)  # that is a misfit
    nulls = (NULL_IN_A_DELETE,) if target.only_keys else null_checks(column)
    asked = target.questions.get(column.name) if is_text(kind) else None
    return (*nulls, *verdict, *([_question(column, asked)] if asked is not None else []))


def unfit_rows(target: Target, batch: pa.RecordBatch) -> dict[int, str]:
    """Rows whose values do not fit, by their place in the batch (from 0), and why. The types must fit."""
    found: dict[int, str] = {}
    for written in target.written(batch.schema):
        column = target.table.column(written.name)
        assert column is not None
        array = decoded(batch.column(batch.schema.get_field_index(written.source)))
        for check in _checks(target, array.type, column, written.source):
            wrong = booleans(pc.fill_null(check.offends(array), False))
            why = check.schema_problem(f"{target.table.name}.{column.name}")
            for index in np.flatnonzero(wrong).tolist():
                found.setdefault(index, why)
    return found


def _question(column: Column, question: Question) -> Check:
    what = "JSON" if "JSON" in question.expression else column.full_type
    return Check(
        f"a text that is no {what}",
        f"only {what}",
        "Correct the values in the job.",
        question.refused,
        None,
        by_table=False,
        problem="syntax",
    )


def _unwritten(target: Target, columns: Sequence[TargetColumn]) -> Iterator[AirflowFtError]:
    written = {column.name for column in columns}
    accounted = target.own | target.required  # `mapped` speaks of these
    for column in target.table.columns.values():
        if column.name in written or column.name.lower() in accounted:
            continue
        if column.must:
            remedy = f"Give {column.name} a default, or add it to the job's result."
            yield target.misfits.required(column.name, remedy)
        elif column.refuses_omission:
            what = (
                f"column {column.name!r} of table {target.table.name} has the default {column.default}, which MariaDB"
            )
            what += " refuses in strict mode, and the rows do not have it."
            change = f"ALTER TABLE {target.table.name.sql} ALTER COLUMN {quote(column.name)} SET DEFAULT '{VALID_DATE}'"
            remedy = f"Run {change}, or add {column.name} to the job's result."
            yield target.misfits.of_table(what, "column_required", remedy, column=column.name)


def _check_size(target: Target, source: str, kind: pa.DataType, statistics: ColumnStatistics | None) -> None:
    """A value must pass the server's packet limit; bytes travel as hex digits, text may double by escaping."""
    largest = 0 if statistics is None else (statistics.max_bytes or 0)
    if largest * 2 + 4096 > target.max_allowed_packet:
        raise SinkAccessError(
            f"a {'text' if is_text(kind) else 'value'} of {largest:,} bytes is too large for max_allowed_packet"
            f" ({target.max_allowed_packet:,}).",
            code="limit_reached",
            remedy=packet_remedy(largest * 2 + 4096),
            sink=target.sink,
            column=source,
            setting="max_allowed_packet",
            bytes=largest,
        )


# --- looking at rows ---------------------------------------------------------------------------------------------


def _rows(reader: SegmentReader, sink: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """All batches with the number (from 1) of their first row in the segment."""
    first = 1
    for file in reader.files(sink):
        for batch in reader.batches(sink, file):
            yield first, batch
            first += batch.num_rows


def check_rows(target: Target, reader: SegmentReader, verdict: Verdict) -> None:
    """One pass over the rows for the checks that statistics cannot decide; `_refusal` of the first offender."""
    sized = bool(target.row_limit) and not target.only_keys
    if not verdict.undecided and not sized:
        return
    for first, batch in _rows(reader, target.sink):
        for source, column, check in verdict.undecided:
            _look(target, batch, source, column, check, first)
        if sized and verdict.columns:
            _look_at_sizes(target, batch, verdict.columns, first)


def all_short(target: Target, reader: SegmentReader, limit: int) -> bool:
    """Return whether the statistics prove that no row is too large for one INSERT."""
    statistics = reader.statistics(target.sink)
    widths = [_width(field.type, statistics.get(field.name)) for field in reader.schema(target.sink)]
    return None not in widths and sum(filter(None, widths)) <= limit


def _width(kind: pa.DataType, known: ColumnStatistics | None) -> int | None:
    """Bytes that a value takes at most; None: not known."""
    kind = decoded_type(kind)
    if not (is_text(kind) or is_binary(kind) or pa.types.is_nested(kind)):
        return 64
    return None if known is None or known.max_bytes is None or pa.types.is_nested(kind) else known.max_bytes + 16


def _look_at_sizes(target: Target, batch: pa.RecordBatch, columns: Sequence[TargetColumn], first: int) -> None:
    """SinkAccessError for the first row that no INSERT can hold: raising the server's limit is enough."""
    sizes = row_sizes(batch, columns) + 16  # a sink may add its own column
    for index in np.flatnonzero(sizes > target.row_limit).tolist()[:1]:
        raise SinkAccessError(
            f"an INSERT of this row takes {sizes[index]:,} bytes, more than max_allowed_packet allows"
            f" ({target.max_allowed_packet:,}).",
            code="limit_reached",
            remedy=packet_remedy(int(sizes[index]) + 4096),
            sink=target.sink,
            row=f"{first + index}",
            setting="max_allowed_packet",
            bytes=int(sizes[index]),
        )


def _decline(target: Target, reader: SegmentReader, source: str, column: Column, check: Check) -> None:
    """Raises for a check that the statistics have decided, naming the first row that offends."""
    for first, batch in _rows(reader, target.sink):
        _look(target, batch, source, column, check, first)
    raise _refusal(target, source, column, check, "")


def _look(target: Target, batch: pa.RecordBatch, source: str, column: Column, check: Check, first: int) -> None:
    """Raises for the first row of the batch that offends."""
    array = decoded(batch.column(batch.schema.get_field_index(source)))
    wrong = pc.fill_null(check.offends(array), False)
    index = pc.index(wrong, True).as_py()
    if index >= 0:
        row = _describe(target, batch, source, index, first)
        raise _refusal(target, source, column, check, row, shown(array.filter(wrong)) if check.named else "")


def _refusal(target: Target, source: str, column: Column, check: Check, row: str, values: str = "") -> AirflowFtError:
    say = target.misfits.of_table if check.by_table else target.misfits.of_rows
    what = check.schema_problem(f"{target.table.name}.{column.name}", values)
    more = {"column": source, "row": row, "problem": check.problem, "allowed": check.allowed}
    return say(f"{what}.", check.code, check.remedy, **more)


def _describe(target: Target, batch: pa.RecordBatch, source: str, index: int, first: int) -> str:
    """'1042 (id=7)': the row's number in the segment and what identifies it, shortened."""
    names = [written.source for written in target.written(batch.schema) if written.name in target.table.key]
    named = [name for name in (names or batch.schema.names[:1]) if name != source][:3]
    values = ", ".join(f"{name}={_short(batch.column(name)[index])}" for name in named)
    return f"{first + index}" + (f" ({values})" if values else "")


def _short(value: pa.Scalar) -> str:
    try:
        text = str(value.as_py())
    except (ValueError, OverflowError):  # a date that Python does not have
        text = str(value.cast(pa.string()))
    return text if len(text) <= 40 else f"{text[:37]}..."
