"""Rows of the log against a table, as multisets: how many of the rows that were delivered are there, and which not.

Checkpoints may have delivered different columns: a job adds one. The rows of each set of columns are a level, and the
levels share the rows of the table. The level with most columns takes its rows first, one with fewer takes from the
rest. Since each level's columns contain the next one's, that finds as many rows as can be found. Sets of columns that
do not contain each other are compared by the columns that they have in common.

If all columns of a key of the table were delivered, each row of the log is looked up by it. No row can be there twice,
so nothing else of the table is read. Otherwise the table is read, once a level.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.protocol.verify import SAMPLES, Difference, SinkReport, sample
from airflow_ft.sinks.mysql.catalog import Column, Table
from airflow_ft.sinks.mysql.keys import Unique, unique_keys
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.load import ONE_BY_ONE, Loader
from airflow_ft.sinks.mysql.naming import TableName, quote
from airflow_ft.sinks.mysql.plain_text import definitions, digest, without_labels
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.vote import Target
from airflow_ft.sinks.view import OneFile

MAX_COLUMNS = 1017
"""Most columns of an InnoDB table, also of a temporary one, so there is not always room for a column of our own."""
SAMPLED_FILES = 10
"""Most files with differences from which rows are shown: each is loaded again for that."""
_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the log, delivered under `number` into these columns; `target` says how its columns are mapped."""

    number: int
    view: OneFile
    target: Target
    columns: frozenset[str]


def usable_key(session: Session, table: Table, delivered: Collection[frozenset[str]]) -> tuple[str, ...]:
    """The columns of a usable unique key that every delivery has filled; (): there is none."""
    common = {name.lower() for name in frozenset.intersection(*delivered)} if delivered else set()
    usable = (key for key in unique_keys(session, table.name) if key.is_usable and common.issuperset(key.parts))
    return tuple(table.columns[part].name for part in next(usable, Unique("")).parts)


def _found(alias: str) -> str:
    """Return how many of the rows with a digest are there, and not taken by a wider level."""
    return f"LEAST({alias}n, GREATEST({alias}have - {alias}taken, 0))"


@dataclass
class _Level:
    """Rows that were delivered in the same columns (or are compared by them)."""

    index: int
    columns: Sequence[Column]
    parts: list[tuple[int, Part]] = field(default_factory=list)  # with their place among all parts

    def digest(self, alias: str) -> str:
        return digest(alias, self.columns)


class Comparison:
    """Compares in temporary tables of the session; `key` are the columns that rows are looked up by."""

    def __init__(self, session: Session, table: Table, key: Sequence[str]) -> None:
        self._session = session
        self._table = table
        self._key = key

    def report(self, report: SinkReport, parts: Sequence[Part]) -> SinkReport:
        """The report with counts, differences and notes filled in; `other` is left as it is."""
        levels, left_out = self._levels(parts)
        if parts and not levels:
            what = "the checkpoints have delivered no common column"
            return replace(report, error=f"{what}: compare the checkpoints one by one", error_code="column_missing")
        for level in levels:
            self._load(level, levels[level.index + 1 :])
        for level in levels:
            if not self._key:
                self._find(level)
            for wider in levels[: level.index]:
                self._take(level, wider)
        notes = list(report.notes)
        if left_out:
            notes.append(f"not compared, since only some checkpoints delivered them: {', '.join(sorted(left_out))}")
        differences = tuple(each for level in levels for each in self._differences(level))
        return replace(
            report,
            missing=sum(self._count(f"SUM(n - {_found('')})", self._name("need", level)) for level in levels),
            repeated=sum(self._repeated(level, levels[level.index + 1 :]) for level in levels),
            differences=tuple(sorted(differences, key=lambda found: (found.number, found.file))),
            notes=tuple(notes),
        )

    def _levels(self, parts: Sequence[Part]) -> tuple[list[_Level], frozenset[str]]:
        """The widest first; and the columns that are left out, since they do not contain each other."""
        sets = sorted({part.columns for part in parts}, key=lambda columns: (-len(columns), sorted(columns)))
        left_out: frozenset[str] = frozenset()
        if any(not narrower <= wider for wider, narrower in pairwise(sets)):
            common = frozenset.intersection(*sets)
            left_out = frozenset.union(*sets) - common
            sets = [common] if common else []
        levels = []
        for index, columns in enumerate(sets):
            described = [column for column in self._table.columns.values() if column.name in columns]
            of_level = [(i, part) for i, part in enumerate(parts) if left_out or part.columns == columns]
            levels.append(_Level(index, described, of_level))
        return levels, left_out

    # --- the log's side ------------------------------------------------------------------------------------------

    def _load(self, level: _Level, narrower: Sequence[_Level]) -> None:
        """The digests of the log's rows, by file, and what they are among the narrower levels' digests."""
        run = self._session.run
        rows, digests, need = self._where("rows"), self._name("digests", level), self._name("need", level)
        counts = "n BIGINT NOT NULL, have BIGINT NOT NULL DEFAULT 0, taken BIGINT NOT NULL DEFAULT 0"
        self._create(need, f"h BINARY(32) NOT NULL PRIMARY KEY, {counts}")
        self._create(digests, "h BINARY(32) NOT NULL, part INT NOT NULL, n BIGINT NOT NULL, PRIMARY KEY (h, part)")
        self._create(self._name("there", level), "h BINARY(32) NOT NULL PRIMARY KEY, n BIGINT NOT NULL")
        for other in narrower:
            columns = "h BINARY(32) NOT NULL PRIMARY KEY, narrow BINARY(32) NOT NULL"
            self._create(self._name("narrow", level, other), columns)
        for index, part in level.parts:
            self._stage(part)
            run(f"INSERT INTO {digests} SELECT {level.digest('r')}, {index}, COUNT(*) FROM {rows} r GROUP BY 1")
            for other in narrower:
                run(
                    f"INSERT IGNORE INTO {self._name('narrow', level, other)}"
                    f" SELECT DISTINCT {level.digest('r')}, {other.digest('r')} FROM {rows} r"
                )
            if self._key:
                same = " AND ".join(f"t.{quote(name)} = r.{quote(name)}" for name in self._key)
                run(
                    f"INSERT IGNORE INTO {self._name('there', level)} SELECT DISTINCT {level.digest('r')}, 1"
                    f" FROM {rows} r STRAIGHT_JOIN {self._table.name.sql} t ON {same}"
                    f" WHERE {level.digest('t')} = {level.digest('r')}"
                )
        run(f"INSERT INTO {need} (h, n) SELECT h, SUM(n) FROM {digests} GROUP BY h")
        if self._key:
            self._note_found(level)

    def _stage(self, part: Part) -> None:
        """The rows of one file in a temporary table that looks like the target, with text for ENUM and SET."""
        columns = [column.name for column in self._table.columns.values() if column.name in part.columns]
        rows = self._where("rows")
        # A primary key of its own where there is room: some servers demand one, and samples come in the log's order.
        own = ["airflow_ft_row BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY"]
        defined = ", ".join([*definitions(part.target, columns), *(own if len(columns) < MAX_COLUMNS else [])])
        self._session.run(f"DROP TEMPORARY TABLE IF EXISTS {rows}")
        self._session.run(
            f"CREATE TEMPORARY TABLE {rows}{f' ({defined})' if defined else ''} ENGINE=InnoDB"
            f" SELECT {', '.join(map(quote, columns))} FROM {self._table.name.sql} WHERE 1 = 0"
        )
        name = TableName(self._table.name.schema, "airflow_ft_verify_rows")
        plain = without_labels(part.target)
        like = replace(plain, table=replace(plain.table, name=name))
        loaded = Loader(self._session, _LIMITS, ONE_BY_ONE).send(part.view, like)
        self._session.forget_statements()
        if loaded != part.view.file.rows:
            raise SinkUnavailableError(
                f"the server took {loaded} of {part.view.file.rows} rows of the log into a temporary table.",
                code="row_count_mismatch",
                remedy="Run `airflow ft verify` again. If it fails too, look for a proxy that changes statements.",
                found=loaded,
                expected=part.view.file.rows,
            )

    # --- the table's side ----------------------------------------------------------------------------------------

    def _find(self, level: _Level) -> None:
        """Count the log's digests in the table, which is read once."""
        need = self._name("need", level)
        self._session.run(
            f"INSERT INTO {self._name('there', level)} SELECT n.h, COUNT(*) FROM {self._table.name.sql} t"
            f" STRAIGHT_JOIN {need} n ON n.h = {level.digest('t')} GROUP BY n.h"
        )
        self._note_found(level)

    def _note_found(self, level: _Level) -> None:
        need, there = self._name("need", level), self._name("there", level)
        self._session.run(f"UPDATE {need} n JOIN {there} t ON t.h = n.h SET n.have = t.n")

    def _take(self, level: _Level, wider: _Level) -> None:
        """Rows of the table that a wider level has found are no longer there for this one."""
        self._session.run(
            f"UPDATE {self._name('need', level)} n JOIN (SELECT m.narrow AS h, SUM({_found('w.')}) AS n"
            f" FROM {self._name('narrow', wider, level)} m JOIN {self._name('need', wider)} w ON w.h = m.h"
            " GROUP BY m.narrow) f ON f.h = n.h SET n.taken = n.taken + f.n"
        )

    def _repeated(self, level: _Level, narrower: Sequence[_Level]) -> int:
        """Rows beyond the delivered ones that no narrower level could have delivered: there they are counted too."""
        joins, free = "", ""
        for other in narrower:
            m, o = f"m{other.index}", f"o{other.index}"
            joins += (
                f" LEFT JOIN {self._name('narrow', level, other)} {m} ON {m}.h = w.h"
                f" LEFT JOIN {self._name('need', other)} {o} ON {o}.h = {m}.narrow"
            )
            free += f" AND {o}.h IS NULL"
        surplus = "SUM(w.have - w.taken - w.n)"
        return self._count(surplus, f"{self._name('need', level)} w{joins} WHERE w.have - w.taken > w.n{free}")

    def _differences(self, level: _Level) -> Iterator[Difference]:
        digests, need = self._name("digests", level), self._name("need", level)
        parts = dict(level.parts)
        counted = self._session.rows(
            f"SELECT d.part, SUM(d.n) FROM {digests} d JOIN {need} n ON n.h = d.h"
            " WHERE n.n > n.have - n.taken GROUP BY d.part ORDER BY d.part"
        )
        for shown, (index, rows) in enumerate(counted):
            part = parts[int(index)]
            samples = self._samples(level, part) if shown < SAMPLED_FILES else ()
            yield Difference(part.number, part.view.file.path, int(rows), samples)

    def _samples(self, level: _Level, part: Part) -> tuple[str, ...]:
        self._stage(part)
        listed = ", ".join(f"r.{quote(column.name)}" for column in level.columns)
        order = " ORDER BY r.airflow_ft_row" if len(part.columns) < MAX_COLUMNS else ""
        rows = self._session.rows(
            f"SELECT {listed} FROM {self._where('rows')} r JOIN {self._name('need', level)} n"
            f" ON n.h = {level.digest('r')} WHERE n.n > n.have - n.taken{order} LIMIT {SAMPLES}"
        )
        return tuple(map(sample, rows))

    # --- small things --------------------------------------------------------------------------------------------

    def _count(self, what: str, where: str) -> int:
        return int(self._session.value(f"SELECT COALESCE({what}, 0) FROM {where}"))

    def _create(self, table: str, columns: str) -> None:
        self._session.run(f"DROP TEMPORARY TABLE IF EXISTS {table}")
        self._session.run(f"CREATE TEMPORARY TABLE {table} ({columns}) ENGINE=InnoDB")

    def _name(self, what: str, *levels: _Level) -> str:
        return self._where("_".join([what, *(str(level.index) for level in levels)]))

    def _where(self, what: str) -> str:
        return TableName(self._table.name.schema, f"airflow_ft_verify_{what}").sql
