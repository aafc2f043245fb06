"""Columns are found by the names that PostgreSQL means."""

from __future__ import annotations

from airflow_ft.sinks.postgres.catalog import Column, Table
from airflow_ft.sinks.postgres.naming import TableName


def _table(*names: str) -> Table:
    columns = {name: Column(name, "text", "b", "", -1, "text", False, False, False, True, "text") for name in names}
    return Table(TableName("public", "orders"), columns, (), False, ())


def test_names_fold_ascii_letters_only() -> None:
    table = _table("Ärger", "ärger", "id")
    found = table.column("ÄRGER")
    assert found is not None
    assert found.name == "Ärger"
    found = table.column("ID")
    assert found is not None
    assert found.name == "id"
    assert _table("ä").column("Ä") is None
