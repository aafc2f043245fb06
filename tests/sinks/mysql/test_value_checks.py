"""Numbers that a column would change. No server."""

from decimal import Decimal

import pyarrow as pa

from airflow_ft.sinks.mysql.catalog import Column
from airflow_ft.sinks.mysql.value_checks import into_decimal, into_text


def test_lost_digits_are_found_even_if_rounding_adds_a_digit() -> None:
    """99.99 rounds to 100.0, which its own type has no room for: prepare ended with an error of Arrow's."""
    column = Column(
        "amount", "decimal", "decimal(5,1)", True, None, "", None, None, 5, 1, None, None, None, None
    )  # fmt: skip
    values = pa.array([Decimal("99.99"), Decimal("99.90"), None], pa.decimal128(4, 2))
    [check] = into_decimal(values.type, column)
    assert check.offends(values).to_pylist() == [True, False, None]


def test_a_duplicate_key_in_a_json_document_is_found() -> None:
    column = Column("document", "json", "json", True, None, "", None, None, None, None, None, None, None, None)
    [check] = into_text(column, None)
    assert check.offends(pa.array(['{"a": 1, "a": 2}', '{"a": 1, "b": 2}', None])).to_pylist() == [True, False, False]
