"""The report: what counts as success, and that it says the same to people and to programs."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tools.demo.killer import Kill
from tools.demo.report import Report

DRIVER = Kill("Spark driver", 11, "flights.stage, try 1", 2, "TRIGGERED", "ABORTED", counts=True)
COMMIT = Kill("commit task", 12, "flights.commit.mysql_default, try 1", 3, "PREPARED", "PREPARED", counts=True)


def comparison(expected: int, **differences: int) -> dict[str, Any]:
    empty: dict[str, Any] = {"duplicates": 0, "missing": 0, "foreign": 0}
    return {"expected": expected, "found": expected, "examples": ["missing: (2013, ...)"], **empty, **differences}


def verdict(**changes: Any) -> dict[str, Any]:
    return {"mysql": comparison(1000), "kafka": comparison(80), "problems": [], **changes}


REPORT = Report("success", 1000, 8, 4, verdict(), (DRIVER, COMMIT), {"all": 100.0})


def test_an_exact_run_with_both_kills_is_a_success() -> None:
    assert REPORT.exact
    assert "EXACT: every flight once" in f"{REPORT}"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"run_state": "failed"}, "the DAG run ended as failed"),
        ({"rows_read": 999}, "999 rows were read, 1,000 were loaded"),
        ({"verdict": verdict(mysql=comparison(1000, missing=1))}, "mysql: duplicates 0, missing 1"),
        ({"verdict": verdict(kafka=comparison(80, duplicates=2))}, "kafka: duplicates 2"),
        ({"verdict": verdict(kafka=comparison(80, foreign=1))}, "foreign 1"),
        ({"verdict": verdict(problems=["running count of carrier UA ..."])}, "running count of carrier UA"),
        ({"verdict": verdict(copies={"files": comparison(1000, duplicates=1)})}, "files: duplicates 1"),
        ({"kills": (DRIVER,)}, "only 1 of 2 kills"),
        ({"kills": (DRIVER, replace(COMMIT, counts=False))}, "only 1 of 2 kills"),
    ],
)
def test_whatever_is_not_exact_is_named(changes: dict[str, Any], why: str) -> None:
    report = replace(REPORT, **changes)
    assert not report.exact
    assert why in f"{report}"
    assert why in " ".join(json.loads(report.to_json())["failures"])


def test_a_kill_that_hit_nothing_is_shown_and_not_counted() -> None:
    report = replace(REPORT, kills=(replace(DRIVER, counts=False), DRIVER, COMMIT))
    assert report.exact
    assert report.kills_survived == 2
    assert "not counted, it hit nothing unfinished" in f"{report}"


def test_where_nothing_is_killed_nothing_has_to_be_hit() -> None:
    assert replace(REPORT, kills=(), kills_expected=0).exact
    assert not replace(REPORT, kills=(), kills_expected=0, rows_read=999).exact


def test_a_copy_is_told_to_people_and_to_programs() -> None:
    promises = {"mysql": "ATOMIC", "kafka": "REDO", "redis": "IDEMPOTENT"}
    report = replace(REPORT, verdict=verdict(copies={"redis": comparison(1000)}), promises=promises)
    table = [line.split() for line in f"{report}".splitlines() if line.split()[0] in ("system", *promises)]
    assert table == [
        ["system", "promise", "rows", "lost", "duplicated", "foreign"],
        ["mysql", "ATOMIC", "1,000", "0", "0", "0"],
        ["kafka", "REDO", "80", "0", "0", "0"],
        ["redis", "IDEMPOTENT", "1,000", "0", "0", "0"],
    ]
    found = json.loads(report.to_json())
    assert (found["copies"]["redis"]["found"], found["promises"]) == (1000, promises)


def test_the_json_says_the_same() -> None:
    found = json.loads(REPORT.to_json())
    assert found["exact"] is True
    assert found["rows_read"] == 1000
    assert found["checkpoints_confirmed"] == 8
    assert found["mysql"]["found"] == 1000
    assert found["kafka_read_committed"]["found"] == 80
    assert (found["duplicates"], found["missing"], found["kills_survived"]) == (0, 0, 2)
    assert [kill["step"] for kill in found["kills"]] == [DRIVER.step, COMMIT.step]
    assert found["airflow"] is None
