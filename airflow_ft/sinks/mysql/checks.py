"""Parts of a judgement on values: `Objection` to a type, or `Check`s that the values must pass. Pure.

The statistics of the staging pass decide a check if they suffice (`Check.by_statistics`), otherwise the rows do
(`Check.offends`): a minimum cannot show whether digits would be cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.write_ahead_log import ColumnStatistics
from airflow_ft.sinks.mysql.catalog import Column

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


def null_checks(column: Column) -> Sequence[Check]:
    """No nulls where the column takes none."""
    if column.nullable and not column.automatic:
        return ()
    why = "it would become the next AUTO_INCREMENT number" if column.automatic else "the column is NOT NULL"
    remedy = "leave the column out of the job's result" if column.automatic else "make the column nullable"
    return (
        Check(
            found="NULL", allowed=f"no NULL ({why})", remedy=f"Fill the values in the job, or {remedy}.",
            offends=pc.is_null, by_statistics=lambda s: s.nulls > 0, by_table=False, problem="null",
            code="null_refused",
        ),
    )  # fmt: skip


NULL_IN_A_DELETE = Check(
    "NULL in the key of a delete", "no NULL, because it is in the key", "Remove such rows in the job.",
    pc.is_null, lambda s: s.nulls > 0, by_table=False, problem="null", code="null_refused",
)  # fmt: skip
