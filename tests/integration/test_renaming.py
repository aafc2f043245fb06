"""A pipeline is renamed by the commands of docs/renaming.md, with real Spark: state, folder and table go on."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.integration.test_running import ROOT, Plain

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


class Renamed(Plain):
    """Into a folder and a table, with a count of each id as state."""

    def called(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *command], cwd=ROOT, env=self.variables, capture_output=True, text=True, timeout=300
        )

    def deliver(self, pipeline: str) -> subprocess.CompletedProcess[str]:
        return self.called("tests.integration.renamed_run", str(self.folder), pipeline)

    def ft(self, *arguments: str) -> str:
        done = self.called("airflow", "ft", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def again(self, name: str) -> None:
        """The first two ids once more."""
        (self.folder / f"{name}.json").write_text('{"id": 1}\n{"id": 2}\n')
        (self.folder / f"{name}.json").rename(self.folder / "in" / f"{name}.json")

    def in_the_table(self) -> list[tuple[int, int]]:
        with closing(sqlite3.connect(self.folder / "shop.db")) as shop:
            return sorted(shop.execute('SELECT id, "count" FROM orders'))

    def in_the_folder(self) -> list[tuple[int, int]]:
        found = ds.dataset(self.folder / "lake", format="parquet").to_table()
        return sorted(zip(found["id"].to_pylist(), found["count"].to_pylist(), strict=True))


def test_a_renamed_pipeline_continues_its_folder_and_table(tmp_path: Path) -> None:
    plain = Renamed(tmp_path)
    plain.add()
    assert plain.deliver("orders").returncode == 0
    there = ["--dir", str(tmp_path / "savepoints")]
    [taken] = json.loads(plain.ft("savepoint", "trigger", "orders", *there, "-o", "json"))
    output = plain.ft("savepoint", "restore", taken["savepoint"], "--pipeline", "shop-orders", "--rename", "--yes")
    assert "the next run of shop-orders continues from checkpoint 1 of orders" in output
    plain.again("more")
    refused = plain.deliver("orders")
    assert refused.returncode != 0 and "[pipeline_renamed]" in refused.stderr and "shop-orders" in refused.stderr
    done = plain.deliver("shop-orders")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["numbers"] == [2]
    wanted = [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert plain.in_the_table() == wanted and plain.in_the_folder() == wanted, "the counts go on"
    names = sorted(each.name for each in (tmp_path / "lake").iterdir() if each.name[0] != "_")
    assert names == ["checkpoint=0000000001", "checkpoint=0000000002"]
    for pipeline in ("orders", "shop-orders"):
        assert "lake" in plain.ft("verify", pipeline)  # which fails when a row is missing or doubled
    assert "lake" in plain.ft("doctor", "shop-orders")
