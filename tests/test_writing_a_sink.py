"""The sink of docs/writing-a-sink.md keeps what the protocol demands; the kit notices what its author gets wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.sinks.registry import system
from airflow_ft.testing import ParticipantConformance
from airflow_ft.testing.world import World
from tests import written_sink
from tests.disks import in_memory
from tests.tiers import CALLS, content_number
from tests.written_sink import PACKAGE

KIT = "tests/test_shelf.py"
SKIPPED = r"names no table with a key|no way to its server on which something is lost|its connection has no secret"
SOME_KILLS = f"""
from airflow_ft.testing import ParticipantConformance

ParticipantConformance.places = ({content_number() % CALLS}, {CALLS})
ParticipantConformance.patience = 0.5
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed distribution, and the page's files in `source` beside it."""
    folder = tmp_path_factory.mktemp("shelf")
    written_sink.write(folder / "source")
    written_sink.install(folder / "source", folder / "site")
    return folder / "site"


def on_the_path(site: Path) -> dict[str, str]:
    """Variables of a process that finds what is installed there."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])}


def test_it_is_short() -> None:
    """As the page says."""
    [said] = re.findall(r"about\s+(\d+)\s+lines", written_sink.PAGE)
    code = "".join(text for name, text in written_sink.files().items() if name.startswith(PACKAGE))
    assert sum(bool(line.strip()) for line in code.splitlines()) <= int(said) + 10


@pytest.mark.slow
def test_it_passes_the_conformance_kit(installed: Path) -> None:
    (installed.parent / "source" / "conftest.py").write_text(SOME_KILLS)  # all of them take minutes
    with in_memory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", f"--basetemp={folder}/kit", KIT],
            cwd=installed.parent / "source", env=on_the_path(installed), capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    cases = [name for name in dir(ParticipantConformance) if name.startswith("test_")]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= len(cases) - 1
    skipped = re.findall(r"^SKIPPED .*", done.stdout, re.MULTILINE)
    assert [line for line in skipped if not re.search(SKIPPED, line)] == []


# --- defects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Defect:
    """A change of the page's text, and the case of the kit that notices it."""

    case: str
    changes: Sequence[tuple[str, str]]
    parameters: dict[str, Any] = field(default_factory=dict)


LEDGER = "class Ledger(DbApiLedger):\n"
PARTICIPANT = "    def _preflight(self):\n"
WRITE_MARKER = """
    def write_marker(self, plan, fence, outcome, counts, detail):
        if outcome {} "committed":
            super().write_marker(plan, fence, outcome, counts, detail)

"""
HEAD = """
    def head(self):
        from dataclasses import replace
        found = super().head()
        return found and replace(found, {})

"""
_LENIENT = """    def _is_settled(self, ledger, head, plan, fence, *, exactly):
        known = ledger.marker(plan.number) is not None
        return known or super()._is_settled(ledger, head, plan, fence, exactly=exactly)

"""
_DELETING = """    def abort(self, plan, fence, detail):
        with opened(self.path) as db:
            for table in self.tables.values():
                db.execute(f"DELETE FROM {table}")
            db.execute("DELETE FROM airflow_ft_ledger WHERE number = ?", (plan.number,))
        return super().abort(plan, fence, detail)

"""
DEFECTS = {
    "no marker is written": Defect(
        "test_to_commit_again_changes_nothing", [(LEDGER, LEDGER + WRITE_MARKER.format("!="))]
    ),
    "no tombstone is written": Defect(
        "test_an_aborted_number_never_comes", [(LEDGER, LEDGER + WRITE_MARKER.format("=="))]
    ),
    "rows and marker are committed one after the other": Defect(
        "test_a_killed_delivery_is_finished_by_the_next_process",
        [
            ('            db.execute("BEGIN IMMEDIATE")', "            pass"),
            ('            db.execute("COMMIT" if keep else "ROLLBACK")\n', ""),
        ],
        {"at": 40},
    ),
    "the head is not compared": Defect(
        "test_an_older_owner_is_fenced",
        [(LEDGER, LEDGER + HEAD.format("epoch=0, attempt=0"))],
        {"epoch": 1, "attempt": 9},
    ),
    "the epoch is not compared": Defect(
        "test_an_older_owner_is_fenced", [(LEDGER, LEDGER + HEAD.format("epoch=0"))], {"epoch": 2, "attempt": 1}
    ),
    "the floor is not raised": Defect(
        "test_a_number_that_was_aborted_and_forgotten_never_comes",
        [(LEDGER, LEDGER + "\n    def raise_floor(self, floor):\n        pass\n\n")],
    ),
    "the digest is not compared": Defect(
        "test_a_decision_log_from_a_backup_is_refused", [(PARTICIPANT, _LENIENT + PARTICIPANT)]
    ),
    "what was delivered last is not remembered": Defect(
        "test_it_remembers_what_was_delivered_last",
        [(LEDGER, LEDGER + "\n    def deliver_head(self, number):\n        pass\n\n")],
    ),
    "an abort deletes what is committed": Defect(
        "test_a_committed_number_is_not_aborted", [(PARTICIPANT, _DELETING + PARTICIPANT)]
    ),
    "counts are made up": Defect(
        "test_what_is_committed_is_visible_once_and_proven",
        [
            ("        return load_all(", "        return dict.fromkeys(self.tables, 1) if load_all("),
            ("reader, dead_letters, db)\n        )\n", "reader, dead_letters, db)\n        ) else {}\n"),
        ],
    ),
    "refused rows are tried again beside those that went in": Defect(
        "test_rows_that_are_set_aside_are_named_and_the_others_come",
        [('            self.db.execute("ROLLBACK TO rows")\n', "            pass\n")],
    ),
    "refused rows are left out without a word": Defect(
        "test_of_refused_rows_nothing_comes",
        [("INSERT INTO", "INSERT OR IGNORE INTO"), ('why = "" if count == rows.num_rows else', 'why = "" or "" and')],
        {"carries": True},
    ),
    "a trial is kept": Defect(
        "test_where_it_follows_nothing_is_visible_before_the_decision",
        [('"COMMIT" if keep else "ROLLBACK"', '"COMMIT"')],
    ),
    "segments of earlier checkpoints are left out": Defect(
        "test_a_checkpoint_of_several_segments_comes_as_one",
        [("self.tables, readers, lambda", "self.tables, readers[-1:], lambda")],
    ),
    "columns are not judged": Defect(
        "test_an_unknown_column_is_named_before_any_row_is_visible",
        [("yield from problems", "yield from ()")],
    ),
    "a table that is gone is taken for one that will be made": Defect(
        "test_a_dropped_table_is_refused_by_prepare", [("if not columns and not make:", "if False:")]
    ),
    "all pipelines are one": Defect(
        "test_it_remembers_what_was_delivered_last",
        [("Ledger(db, fence.pipeline,", 'Ledger(db, "all",'), ("Ledger(db, pipeline,", 'Ledger(db, "all",')],
    ),
    "NaN becomes NULL": Defect(
        "test_unsupported_values_are_refused_before_the_decision",
        [("    def unfit(self, rows):", "    def looked_at(self, rows):")],
        {"carries": True},
    ),
    "no marker is found": Defect(
        "test_what_is_committed_is_visible_once_and_proven",
        [("yield ledger if ledger.exists() else None", "yield None")],
    ),
}


@pytest.fixture
def shelf(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of what is installed, for this test alone, on the path of this process and those that it starts."""
    copy = tmp_path / "site"
    shutil.copytree(installed, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(str(copy))
    monkeypatch.setenv("PYTHONPATH", on_the_path(copy)["PYTHONPATH"])
    written_sink.forget()
    yield copy
    written_sink.forget()


def play(defect: Defect, folder: Path) -> None:
    folder.mkdir()
    names: dict[str, Any] = {"__name__": "test_shelf"}
    exec(compile(written_sink.files()[KIT], KIT, "exec"), names)
    world = World(names["ShelfFile"](folder), folder)
    getattr(ParticipantConformance(), defect.case)(world, **defect.parameters)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_noticed(name: str, shelf: Path, tmp_path: Path) -> None:
    """Without it the same case passes: see `test_it_passes_the_conformance_kit`."""
    defect = DEFECTS[name]
    module = shelf / PACKAGE / "sink.py"
    text = module.read_text()
    for old, new in defect.changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    compile(text, str(module), "exec")
    module.write_text(text)
    shutil.rmtree(module.parent / "__pycache__", ignore_errors=True)
    written_sink.forget()
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        play(defect, tmp_path / "with the defect")
    assert not isinstance(caught.value, NameError | ImportError | TypeError | AttributeError), (
        "it is the kit that notices"
    )


# --- a whole pipeline -------------------------------------------------------------------------------------------------

PIPELINE = """
import json, sys
import airflow_ft as ft
from shelf_for_airflow import ShelfSink


@ft.job
class Orders:
    def transform(self, spark, sources):
        return sources["orders"]

    def split(self, batch):
        return {"large": batch.where("amount >= 100"), "small": batch.where("amount < 100")}


result = ft.run(
    pipeline="orders",
    job=Orders,
    sources={"orders": ft.FileSource(path=sys.argv[1], schema="id bigint, customer string, amount double")},
    sinks={name: ShelfSink(table=name, conn_id="shop") for name in ("large", "small")},
    spark_master="local[2]",
    spark_conf={"spark.driver.memory": "700m"},
)
print(json.dumps(result))
"""


@pytest.mark.sampled(among="Spark drivers")
@pytest.mark.airflow
@pytest.mark.spark
@pytest.mark.slow
def test_files_come_onto_the_shelf_through_a_whole_pipeline(installed: Path, tmp_path: Path) -> None:
    folder, script, shop = tmp_path / "in", tmp_path / "pipeline.py", tmp_path / "shop.db"
    folder.mkdir()
    script.write_text(PIPELINE)
    variables = {name: value for name, value in on_the_path(installed).items() if not name.startswith("AIRFLOW")}
    variables |= {
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_SHOP": json.dumps({"conn_type": "sqlite", "host": str(shop)}),
    }
    expected: list[tuple[int, str, float]] = []
    for day in (1, 2):
        rows = [{"id": 10 * day + n, "customer": f"customer {n}", "amount": 40.0 * n} for n in range(1, 6)]
        (tmp_path / "new.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        (tmp_path / "new.json").rename(folder / f"{day}.json")
        expected += [tuple(row.values()) for row in rows]  # type: ignore[misc]
        done = subprocess.run(
            [sys.executable, str(script), str(folder)], env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        assert (result["numbers"], result["rows"], result["set_aside"]) == ([day], 5, {})
        with closing(sqlite3.connect(shop)) as db:
            found = {name: db.execute(f"SELECT * FROM {name} ORDER BY id").fetchall() for name in ("large", "small")}
        assert found == {
            "large": [row for row in expected if row[2] >= 100],
            "small": [row for row in expected if row[2] < 100],
        }


def test_a_dag_is_parsed_without_what_runs_in_tasks(shelf: Path) -> None:
    assert system("shelf").part("lineage") is None, "the page leaves it out"
    heavy = "{'pyarrow', 'sqlite3', 'shelf_for_airflow.sink'}"
    program = f"import sys, shelf_for_airflow; print(sorted({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
