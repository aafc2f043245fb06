"""How counts, codes and unknown places are written for people."""

from __future__ import annotations

from airflow_ft.pipeline.actions import examining, verifying
from airflow_ft.protocol.doctor import Examination
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.verify import SinkReport


def test_a_count_has_the_noun_of_its_number() -> None:
    assert [count_text(n, "row") for n in (0, 1, 2345)] == ["0 rows", "1 row", "2,345 rows"]
    assert [count_text(n, "copy", "copies") for n in (1, 2)] == ["1 copy", "2 copies"]


def refuses() -> None:
    raise SinkAccessError("no.", code="privilege_missing", remedy="Grant it.")


def test_the_doctor_shows_codes_as_logs_do() -> None:
    exam = Examination("connection shop")
    exam.attempt("table orders", refuses)
    exam.ok("clock", "fine")
    assert "PROBLEM table orders [privilege_missing]: no." in "\n".join(examining.lines(exam.checks))
    assert "ok      clock: fine" in "\n".join(examining.lines(exam.checks))


def test_a_sink_that_could_not_be_read_has_no_riddle_for_a_place() -> None:
    report = SinkReport("shop", "rejected", "", (1,), 1, error="it is away")
    [line, _] = verifying.describe(report)
    assert line == "shop: sink rejected, checkpoint 1"
    [_, whole] = verifying.describe(SinkReport("shop", "rows", "orders", (1,), 1))
    assert whole == "  complete: 1 of 1 row is there"
