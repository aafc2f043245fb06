"""The examples of docs/external.md, as programs of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "external.md"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Programs:
    """A folder with the examples, and the tables that they write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, code in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(), re.DOTALL):
            (folder / f"{name}.py").write_text(code)
        kept = {n: v for n, v in os.environ.items() if not n.startswith("AIRFLOW") and n != "PYTEST_CURRENT_TEST"}
        self.variables = {
            **kept,
            "AIRFLOW_HOME": str(folder / "home"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__AIRFLOW_FT__LEASE_SECONDS": "2",
            "AIRFLOW_CONN_SHOP": json.dumps({"conn_type": "sqlite", "host": str(folder / "shop.db")}),
        }

    def start(self, name: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-u", str(self.folder / f"{name}.py"), *map(str, arguments)]
        return subprocess.Popen(
            command, env=self.variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, name: str, *arguments: object) -> str:
        """The last line that it prints, besides those of the log."""
        process = self.start(name, *arguments)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        return [line for line in output.splitlines() if not re.match(r"\d{4}-", line)][-1]

    def rows(self, table: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.folder / "shop.db")) as shop:
            return shop.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


@pytest.mark.spark
@pytest.mark.sampled(among="Spark drivers")
def test_a_spark_job_delivers_with_its_last_line(programs: Programs) -> None:
    orders = pa.table({"customer": ["a", "b", "a"], "amount": pa.array([1, 2, 3], pa.int64())})
    (programs.folder / "in").mkdir()
    pq.write_table(orders, programs.folder / "in" / "orders.parquet")
    assert programs.run("totals_by_customer", "2026-11-24", programs.folder / "in") == "2 rows"
    assert programs.run("totals_by_customer", "2026-11-24", programs.folder / "in") == "delivered before"
    assert programs.rows("totals") == [("a", 4), ("b", 2)]
    left = [path.name for path in (programs.folder / "home").rglob("*") if path.name == ".given"]
    assert not left


FAILING = """
import pathlib, sys

import airflow_ft as ft
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf


@udf
def bad(id):
    raise ValueError("a bad row")


folder = sys.argv[1]
spark = SparkSession.builder.master("local[2]").getOrCreate()
frame = spark.read.parquet(folder)
for rows, damage in ((frame.withColumn("what", bad("id")), None), (frame, b"PAR1 torn PAR1")):
    if damage:
        for file in pathlib.Path(folder).glob("*.parquet"):
            file.write_bytes(damage)
    try:
        ft.deliver(
            rows,
            pipeline="failing",
            position="a",
            sinks={"failing": ft.SqliteSink(table="failing", conn_id="shop")},
            restart=ft.NoRestart(),
        )
    except Exception as error:
        print("FAILED", type(error).__name__, error.code, " ".join(str(error).split()))
print("end")
"""


@pytest.mark.spark
@pytest.mark.sampled(among="Spark drivers")
def test_a_dataframe_that_fails_says_why(programs: Programs) -> None:
    (programs.folder / "in").mkdir()
    pq.write_table(pa.table({"id": [1]}), programs.folder / "in" / "orders.parquet")
    (programs.folder / "failing.py").write_text(FAILING)
    process = programs.start("failing", programs.folder / "in")
    output, _ = process.communicate(timeout=300)
    raised, damaged = [line for line in output.splitlines() if line.startswith("FAILED")]
    assert raised.startswith("FAILED JobError job_failed") and "ValueError: a bad row (" in raised
    assert damaged.startswith("FAILED StageError query_failed") and "orders.parquet" in damaged


def test_a_program_without_spark(programs: Programs) -> None:
    orders = pa.table({"id": pa.array([1, 2], pa.int64()), "amount": [1.5, 2.5], "paid": [True, False]})
    (programs.folder / "in").mkdir()
    pq.write_table(orders, programs.folder / "in" / "orders.parquet")
    assert programs.run("paid_orders", 7, programs.folder / "in") == "checkpoint 1: 1 rows"
    assert programs.rows("paid") == [(1, 1.5)]


@pytest.mark.sampled(among="slow checks")
def test_a_killed_script_is_run_again(programs: Programs) -> None:
    file = programs.folder / "orders.csv"
    file.write_text("id,amount\n1,10\n2,2000\n")
    days = "2026-11-24", "2026-11-25"
    process = programs.start("load_orders", *days, file)
    assert process.stdout is not None
    for line in process.stdout:
        if "checkpoint 1 published" in line:
            process.kill()
            break
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()
    assert programs.run("load_orders", *days, file) == "checkpoint 1: 3 rows"
    assert programs.run("load_orders", *days, file) == "checkpoint 1: 0 rows"
    assert programs.rows("orders") == [(1, 10), (2, 2000)]
    assert programs.rows("large") == [(2, 2000)]
