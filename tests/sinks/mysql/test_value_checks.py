"""Numbers that a column would change. No server."""

from decimal import Decimal

import pyarrow as pa

from airflow_ft.sinks.mysql.catalog import Column
from airflow_ft.sinks.mysql.value_checks import into_decimal, into_text


def test_digits_that_would_be_cut_off_are_found_also_where_rounding_adds_one_before_the_point() -> None:
    """99.99 rounds to 100.0, which its own type has no room for: prepare ended with an error of Arrow's."""
    column = Column(
        "amount", "decimal", "decimal(5,1)", True, None, "", None, None, 5, 1, None, None, None, None
    )  # fmt: skip
    values = pa.array([Decimal("99.99"), Decimal("99.90"), None], pa.decimal128(4, 2))
    [check] = into_decimal(values.type, column)
    assert check.offends(values).to_pylist() == [True, False, None]


def test_a_key_that_comes_twice_is_found_where_the_server_keeps_one() -> None:
    column = Column("document", "json", "json", True, None, "", None, None, None, None, None, None, None, None)
    [check] = into_text(column, None)
    assert check.offends(pa.array(['{"a": 1, "a": 2}', '{"a": 1, "b": 2}', None])).to_pylist() == [True, False, False]
