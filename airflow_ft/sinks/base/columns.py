"""Column fit: may values of a type go into a column of a table, and which conditions must they meet?

There are three answers: they fit (no checks), their values must be looked at (`Check`s), or they cannot (`Objection`).
The statistics of the staging pass decide a check if they suffice (`Check.by_statistics`), otherwise the rows do
(`Check.offends`): a minimum cannot show whether digits would be cut off. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from airflow_ft.protocol.ports import ColumnStatistics

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
