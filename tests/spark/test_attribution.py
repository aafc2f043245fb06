"""Lines and threads of several streams in one process."""

from __future__ import annotations

import logging
import os
import select
import threading

import pytest

from airflow_ft.spark.attribution import (
    MarkedOutput,
    bound,
    current,
    inherited,
    marked,
    named_records,
    unmarked,
    working_for,
)


def test_a_thread_works_for_the_stream_of_its_parent_thread() -> None:
    found: list[str] = []

    def look() -> None:
        found.append(current())

    with inherited(), working_for("orders"):
        thread = threading.Thread(target=lambda: (look(), _started(look)))
        thread.start()
        thread.join()
    _started(look)
    assert found == ["orders", "orders", ""]


def test_a_jvm_callback_works_for_the_stream_that_registered_it() -> None:
    with working_for("orders"):
        call = bound(current)
    found: list[str] = []
    _started(lambda: found.extend([call(), current()]))
    assert found == ["orders", ""]


def test_lines_name_their_stream_also_behind_text_of_the_jvm() -> None:
    assert list(unmarked(marked("orders", "one"))) == [("orders", "one")]
    assert list(unmarked("of the JVM")) == [("", "of the JVM")]
    assert list(unmarked("half a line" + marked("orders", "two"))) == [("", "half a line"), ("orders", "two")]


def test_an_output_keeps_the_parts_of_a_line_together_by_stream() -> None:
    reader, writer = os.pipe()
    output = MarkedOutput(writer)
    with working_for("a"):
        output.write("first ")
    with working_for("b"):
        output.write("other\n")
    with working_for("a"):
        output.write("half\nsecond\n")
    output.write("of no stream\n")
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        lines = [pair for line in file.read().decode().split("\n")[:-1] for pair in unmarked(line)]
    assert lines == [("b", "other"), ("a", "first half"), ("a", "second"), ("", "of no stream")]


def test_a_line_of_its_own_is_written_below_an_unfinished_one() -> None:
    reader, writer = os.pipe()
    output = MarkedOutput(writer)
    with working_for("a"):
        output.write("...")
    output.say("a", "ended")
    output.say("a", "again")
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        lines = [pair for line in file.read().decode().split("\n")[:-1] for pair in unmarked(line)]
    assert lines == [("a", "..."), ("a", "ended"), ("a", "again")]


def test_the_jvm_cannot_tear_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes of more than PIPE_BUF bytes are not atomic beside those of the JVM, which has the same pipe."""
    written: list[bytes] = []
    monkeypatch.setattr(os, "write", lambda _, data: written.append(data) or len(data))
    output = MarkedOutput(1)
    with working_for("a"):
        output.write("." * select.PIPE_BUF)
    output.say("a", "ended")
    assert written[-1].decode() == marked("a", "ended\n")


def test_records_of_this_package_begin_with_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    with named_records(), working_for("orders"):
        logging.getLogger("airflow_ft.spark").warning("%d rows", 3)
        logging.getLogger("elsewhere").warning("as it is")
        assert logging.makeLogRecord({"msg": "a copy"}).msg == "a copy"
    logging.getLogger("airflow_ft.spark").warning("behind")
    assert caplog.messages == ["[orders] 3 rows", "as it is", "behind"]


def _started(work: object) -> None:
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    thread.join()
