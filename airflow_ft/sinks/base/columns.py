"""Column fit: may values of a type go into a column of a table, and which conditions must they meet?

There are three answers: they fit (no checks), their values must be looked at (`Check`s), or they cannot (`Objection`).
The statistics of the staging pass decide a check if they suffice (`Check.by_statistics`), otherwise the rows do
(`Check.offends`): a minimum cannot show whether digits would be cut off. `Misfits` has the errors that all systems with
tables share. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.errors import PROPOSED, DeclinedError, SinkAccessError, UnfitTargetError
from airflow_ft.protocol.lookup import did_you_mean
from airflow_ft.protocol.write_ahead_log import ColumnStatistics

Statistics = Callable[[ColumnStatistics], bool]
Rows = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a type cannot go into a column, and what would help: another column, unless `by_table` is False."""

    found: str
    remedy: str
    by_table: bool = True

    @property
    def code(self) -> str:
        """The error's code."""
        return "column_unfit" if self.by_table else "type_unsupported"


@dataclass(frozen=True, slots=True)
class Check:
    """One condition on the values.

    Args:
        found: what is wrong with an offending value, for people.
        allowed: what the column allows, for people.
        remedy: what to do.
        offends: marks offending rows; nulls may be null in it.
        by_statistics: whether any value offends; None if only the rows can say it.
        named: whether the error shows some of the values.
        by_table: whether another column, such as a wider one, takes the values, so that they stay staged.
        problem: the kind of misfit in one word, for programs.
        code: the code of the error.
    """

    found: str
    allowed: str
    remedy: str
    offends: Rows
    by_statistics: Statistics | None
    named: bool = False
    by_table: bool = True
    problem: str = ""
    code: str = "value_unfit"

    def schema_problem(self, column: str, values: str = "") -> str:
        """Say what does not fit, without a full stop; `column` names the table's, `values` are some that offend."""
        return f"found {self.found}{f' ({values})' if values else ''}, and {column} allows {self.allowed}"


@dataclass(frozen=True, slots=True)
class TableColumn(ABC):
    """A column of a table that rows go into. A system says what it takes."""

    name: str

    @property
    @abstractmethod
    def must(self) -> bool:
        """Rows have to fill it: it is NOT NULL without a default."""


@dataclass(frozen=True, slots=True)
class Misfits:
    """Errors for a `table`, as messages name it, that does not take the rows of a sink.

    A column is the one of the rows. Each remedy is the system's own: its words for the statement that helps.
    """

    table: str
    sink: str = ""

    def no_table(self, remedy: str) -> UnfitTargetError:
        """The table is not there, or hidden."""
        return self.of_table(
            f"table {self.table} does not exist, or the connection's user may not see it.",
            "table_missing",
            f"{remedy} {PROPOSED}",
        )

    def missing(self, column: str, name: str, known: Iterable[str], remedy: str) -> UnfitTargetError:
        """The table has no column called `name`; `known` are those that it has."""
        names = [*known]
        what = f"table {self.table} has no column {name!r}. It has: {', '.join(names)}."
        return self.of_table(what, "column_missing", f"{did_you_mean(name, names)}{remedy}", column=column)

    def no_such_key(self, key: str, known: Sequence[str]) -> UnfitTargetError:
        """The table lacks a column of `key_columns`; `known` are those that it has."""
        what = f"table {self.table} has no column {key!r}, which key_columns= of the sink names."
        what += f" It has: {', '.join(known)}."
        remedy = f"{did_you_mean(key, known)}Correct key_columns= of the sink, or add the column to the table."
        return self.of_table(what, "column_missing", remedy, column=key, argument="key_columns", columns=list(known))

    def required(self, column: str, remedy: str) -> UnfitTargetError:
        """The rows do not have a column that they have to fill."""
        what = f"column {column!r} of table {self.table} is NOT NULL without a default, and the rows do not have it."
        return self.of_table(what, "column_required", remedy, column=column)

    def generated(self, column: str, name: str, remedy: str) -> UnfitTargetError:
        """The server computes the column, which the table calls `name`."""
        what = f"the server computes column {name!r} of table {self.table}, which takes no values."
        return self.of_table(what, "column_generated", remedy, column=column)

    def unfit(self, column: str, declared: str, given: str, remedy: str) -> UnfitTargetError:
        """The column's type would change values of the rows."""
        what = f"a column of type {declared} of table {self.table} does not hold {given} exactly."
        return self.of_table(what, "column_unfit", remedy, column=column, declared=declared, type=given)

    def reserved(self, column: str, name: str, remedy: str) -> DeclinedError:
        """The sink itself fills the column, which the table calls `name`."""
        what = f"the sink itself fills column {name!r} of table {self.table}, and the rows have such a column."
        return self.of_rows(what, "column_reserved", remedy, column=column)

    def ambiguous(self, first: str, second: str) -> str:
        """Return what is wrong with two columns of the rows that are one to the table."""
        return f"the columns {first!r} and {second!r} of the rows are one column of table {self.table}."

    def no_key(self, keys: Sequence[str], remedy: str) -> UnfitTargetError:
        """No unique key identifies rows by these columns."""
        what = f"key_columns ({', '.join(keys)}) are not a unique key of table {self.table} without NULL."
        return self.of_table(what, "key_unfit", remedy, key_columns=list(keys))

    def no_version(self, column: str, is_there: bool, remedy: str) -> UnfitTargetError:
        """There is no column of 64 bits for the version."""
        code = "column_unfit" if is_there else "column_missing"
        what = f"table {self.table} has no BIGINT column {column!r} for version_column."
        return self.of_table(what, code, remedy, version_column=column)

    def not_granted(self, privileges: Sequence[str], remedy: str, **fields: Any) -> SinkAccessError:
        """The connection's user lacks privileges on the table."""
        return SinkAccessError(
            f"the connection's user lacks {', '.join(privileges)} on table {self.table}.",
            code="privilege_missing",
            remedy=remedy,
            sink=self.sink,
            table=self.table,
            privileges=list(privileges),
            **fields,
        )

    def of_table(self, what: str, code: str, remedy: str, **fields: Any) -> UnfitTargetError:
        """Return any other error that a change of the table ends."""
        return UnfitTargetError(what, code=code, remedy=remedy, sink=self.sink, table=self.table, **fields)

    def of_rows(self, what: str, code: str, remedy: str, **fields: Any) -> DeclinedError:
        """Return any other error that only a change of the job or of the sink ends."""
        return DeclinedError(what, code=code, remedy=remedy, sink=self.sink, table=self.table, **fields)
