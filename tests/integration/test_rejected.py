"""Dead letters by one argument: rows that the job cannot use go into a sink of their own, and too many fail the run."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import airflow_ft as ft
from airflow_ft.protocol.errors import DeadLettersError, JobError
from airflow_ft.protocol.model import CheckpointState
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.store import open_store
from tests.raising import raises

pytestmark = [pytest.mark.sampled(among="Spark drivers"), pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow]


@ft.job
class Parsed:
    def __init__(self, marked: bool = True) -> None:
        self.marked = marked

    def transform(self, spark: Any, sources: Any) -> Any:
        from airflow_ft.jobs.parsing import parse_json

        lines = sources["lines"]
        return parse_json(lines, "id bigint", "line", on_malformed="keep") if self.marked else lines


class Shop:
    def __init__(self, folder: Path) -> None:
        self.folder, self._files = folder, 0
        (folder / "in").mkdir()

    def add(self, *lines: str) -> None:
        """One more file, of JSON objects with a line of text each."""
        self._files += 1
        hidden = self.folder / f"{self._files}.json"
        hidden.write_text("".join(json.dumps({"line": line}) + "\n" for line in lines))
        hidden.rename(self.folder / "in" / hidden.name)

    def run(self, **changes: Any) -> Any:
        return ft.run(self.spec(**changes))

    def spec(self, **changes: Any) -> ft.PipelineSpec:
        arguments: dict[str, Any] = {
            "pipeline": "shop",
            "job": Parsed,
            "sources": {"lines": ft.FileSource(path=str(self.folder / "in"), schema="line string")},
            "sinks": {name: ft.SqliteSink(table=name, conn_id="shop") for name in ("orders", "rejected")},
            "dead_letters": ft.DeadLetters(sink="rejected", max_share=0.5),
            "store": f"sqlite:///{self.folder / 'ft.db'}",
            "wal_root": str(self.folder / "wal"),
            "spark_master": "local[2]",
            "keep_session": timedelta(minutes=1),
        }
        return ft.PipelineSpec(**{**arguments, **changes})

    def rows(self, question: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder / "shop.db")) as shop:
            return list(shop.execute(question))


@pytest.fixture
def shop(shop_folder: Path) -> Shop:
    return Shop(shop_folder)


def test_malformed_rows_go_into_their_sink_without_a_split(shop: Shop) -> None:
    shop.add('{"id": 1}', "no json", '{"id": 2}')
    assert shop.run()["rows"] == 3
    assert shop.rows("SELECT id FROM orders ORDER BY id") == [(1,), (2,)]
    assert shop.rows("SELECT reason, CAST(raw AS TEXT) FROM rejected") == [
        ("not one JSON object of the declared schema", "no json")
    ]
    shop.add('{"id": 3}')
    assert shop.run()["rows"] == 1


def test_too_many_fail_the_run_and_nothing_is_published(shop: Shop) -> None:
    shop.add('{"id": 1}', "a", "b", "c")
    with raises(DeadLettersError, "too_many_dead_letters", sink="rejected", dead=3, rows=4):
        shop.run()
    with closing(open_store(f"sqlite:///{shop.folder / 'ft.db'}")) as store:
        [checkpoint] = store.checkpoints("shop", 10)
    assert checkpoint.state is CheckpointState.ABORTED and checkpoint.reason is AbortReason.TOO_MANY_DEAD_LETTERS
    output = ft.dry_run(shop.spec())  # the remedy: it shows them
    assert [row["raw"] for row in output.samples["rejected"]] == [b"a", b"b", b"c"] and output.rows["orders"] == 1
    [problem] = output.problems
    assert (problem.subject, output.would_be_refused) == ("sink rejected", True)
    assert "3 of 4 rows are dead letters, more than max_share=0.5 allow" in "\n".join(output.lines())
    assert not ft.dry_run(shop.spec(dead_letters="rejected")).problems
    assert not (shop.folder / "shop.db").exists() or not shop.rows("SELECT 1 FROM sqlite_master WHERE name = 'orders'")
    assert shop.run(dead_letters="rejected")["rows"] == 4  # any number
    assert shop.rows("SELECT COUNT(*) FROM rejected") == [(3,)]


def test_a_job_that_cannot_mark_dead_letters_is_refused(shop: Shop) -> None:
    shop.add('{"id": 1}')
    with raises(JobError, "split_unfit", missing=["rejected"]):
        shop.run(job_args={"marked": False})
