"""The process that forks those of the kit: what they have of whoever asks, what they tell of their end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.testing import nursery
from airflow_ft.testing.nursery import Forked


def run(given: Mapping[str, Any]) -> None:
    """In a forked process."""
    if given["what"] == "say":
        print(os.environ.get("ODD"), Path.cwd())
    elif given["what"] == "sleep":
        print("asleep", flush=True)
        time.sleep(600)
    else:
        raise ValueError("something is wrong")


@pytest.fixture(autouse=True)
def _of_this_test() -> Iterator[None]:
    nursery.forget()
    yield
    nursery.forget()


def forked(output: Path, what: str, module: str = __name__, kind: str = "sqlite") -> Forked:
    with output.open("w") as file:
        return nursery.fork(module, {"what": what}, kind, file.fileno())


def said(output: Path, what: str, module: str = __name__) -> str:
    assert forked(output, what, module).wait(60) == 0, output.read_text()
    return output.read_text().strip()


def test_a_forked_process_has_the_callers_environment_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said(tmp_path / "first", "say") == f"None {Path.cwd()}"
    monkeypatch.setenv("ODD", "is there")
    monkeypatch.chdir(tmp_path)
    assert said(tmp_path / "second", "say") == f"is there {tmp_path}"


def test_its_end_is_told_as_that_of_any_process(tmp_path: Path) -> None:
    failed = forked(tmp_path / "failed", "fail")
    assert failed.wait(60) == failed.poll() == 1
    assert "ValueError: something is wrong" in (tmp_path / "failed").read_text()
    failed.kill()  # it has gone, and so has its number
    asleep = forked(tmp_path / "asleep", "sleep")
    with pytest.raises(subprocess.TimeoutExpired):
        asleep.wait(0.01)
    assert asleep.poll() is None
    asleep.kill()
    assert asleep.wait(60) == -signal.SIGKILL


def test_a_process_is_over_when_its_nursery_is(tmp_path: Path) -> None:
    asleep = forked(tmp_path / "asleep", "sleep")
    nursery.forget()
    assert asleep.wait(60) == asleep.poll() == -signal.SIGKILL
    asleep.kill()


def test_modules_are_imported_again_for_a_new_path_or_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said(tmp_path / "before", "say"), "one is there"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    module = tmp_path / "told_by_number.py"
    for text in ("one", "another"):
        module.write_text(f"def run(given):\n    print({text!r})\n")
        assert said(tmp_path / "output", "say", "told_by_number") == text
        nursery.forget()


def test_a_failed_import_ends_only_the_process_that_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_part.py").write_text("raise ImportError('its client is lacking')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    broken = forked(tmp_path / "broken", "say", "broken_part")
    assert broken.wait(60) == 1
    assert "its client is lacking" in (tmp_path / "broken").read_text()
    unknown = forked(tmp_path / "unknown", "say", kind="of no system")
    assert unknown.wait(60) == 0, "only what comes before a fork is lacking"
    assert said(tmp_path / "next", "say") == f"None {Path.cwd()}"


def test_whoever_ends_the_tests_at_the_terminal_ends_it_too(tmp_path: Path) -> None:
    asleep = forked(tmp_path / "asleep", "sleep")
    while "asleep" not in (tmp_path / "asleep").read_text():
        time.sleep(0.01)
    asleep.send_signal(signal.SIGINT)
    assert asleep.wait(60) == 1
    assert "KeyboardInterrupt" in (tmp_path / "asleep").read_text()


KILLED_REQUESTER = f"""
import signal, sys
from pathlib import Path
from airflow_ft.testing import nursery
from tests.waiting import wait_for
with open(sys.argv[1], "w") as file:
    child = nursery.fork({__name__!r}, {{"what": "sleep"}}, "sqlite", file.fileno())
wait_for(lambda: "asleep" in Path(sys.argv[1]).read_text(), 60, "the child sleeps", 0.01)
child.send_signal(signal.SIGSTOP)
print(nursery._nursery._process.pid, child.pid, flush=True)
signal.pause()
"""


def test_stopped_processes_end_with_a_killed_requester(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_REQUESTER, str(tmp_path / "output")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as requester:
        assert requester.stdout is not None
        handles = [os.pidfd_open(int(pid)) for pid in requester.stdout.readline().split()]
        requester.kill()
    assert len(handles) == 2
    for handle in handles:
        try:
            assert select.select([handle], [], [], 60)[0], "it outlives its requester"
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
