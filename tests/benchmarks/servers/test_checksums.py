"""Checksums of data sets that a server computes."""

from __future__ import annotations

from decimal import Decimal

import pytest

from benchmarks.data import FLIGHTS, ORDERS, Content, Dataset
from tools.servers import Database


@pytest.mark.parametrize("dataset", [ORDERS, FLIGHTS], ids=lambda dataset: dataset.name)
def test_servers_compute_the_same_checksum(dataset: Dataset, any_mysql_database: Database) -> None:
    table = dataset.make(1000)  # flights: some of them were cancelled, so that there are nulls
    database = any_mysql_database
    database.sql(dataset.create_sql("t"))
    with database.connect() as connection, connection.cursor() as cursor:
        values = [tuple(row.values()) for row in table.to_pylist()]
        assert dataset is not ORDERS or isinstance(values[0][7], Decimal)
        cursor.executemany(f"INSERT INTO t VALUES ({', '.join(['%s'] * len(dataset.columns))})", values)
    count, checksum = database.sql(dataset.content_sql("t"))[0]
    assert Content(int(count), int(checksum)) == dataset.content(table)
    moment = next(name for name, (kind, _) in dataset.columns.items() if kind == "DATETIME(6)")
    database.sql(f"UPDATE t SET {moment} = {moment} + INTERVAL 1 MICROSECOND WHERE id = 7")
    assert int(database.sql(dataset.content_sql("t"))[0][1]) != checksum
