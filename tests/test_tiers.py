"""The parts of `make test`: each tries something of every matrix, all of them together try all of it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tiers import MATRICES, PARTS, TWELFTHS, content_number, is_named, order, out_of_turn


class Case:
    """As much of a pytest item as the choice looks at."""

    def __init__(
        self, nodeid: str, own: pytest.MarkDecorator | None = None, of_the_file: pytest.MarkDecorator | None = None
    ) -> None:
        self.nodeid = nodeid
        self.fixturenames: tuple[str, ...] = ()
        self.session = SimpleNamespace(_fixturemanager=SimpleNamespace(getfixturedefs=lambda *_: ()))
        self.own_markers = [own.mark] if own else []
        self._closest = own or of_the_file

    def get_closest_marker(self, name: str) -> object:
        return self._closest.mark if name == "rotating" and self._closest else None


def tried(cases: list[Case], turn: int) -> list[str]:
    """What is left of them."""
    left_out = out_of_turn(cases, turn)  # type: ignore[arg-type]
    return [case.nodeid for case in cases if case not in left_out]


def among(what: str, count: int) -> list[Case]:
    mark = pytest.mark.rotating(among=what)
    return [Case(f"tests/core/test_{n}.py::test_a", of_the_file=mark) for n in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 13, 25])
@pytest.mark.parametrize(
    "kind",
    [
        "of tests/integration",
        "marked",
        "marked together",
        "marked as a file",
        "among others",
        "neighbours",
        "halved",
        "thirds",
    ],
)
def test_every_part_has_something_of_a_matrix_and_together_they_have_all(count: int, kind: str) -> None:
    if kind == "of tests/integration":
        cases = [Case(f"{MATRICES}test_a.py::test_b[{n}]") for n in range(count)]
    elif kind == "marked":
        cases = [Case(f"tests/core/test_a.py::test_b[{n}]", own=pytest.mark.rotating) for n in range(count)]
    elif kind == "marked together":
        cases = [Case(f"tests/core/test_a.py::test_{n}", own=pytest.mark.rotating("of these")) for n in range(count)]
    elif kind == "among others":
        cases = among("others", count)
    elif kind == "neighbours":
        cases = among("Airflow", count)
    elif kind == "halved":
        cases = among("Spark drivers", count)
    elif kind == "thirds":
        cases = among("the page", count)
    else:
        cases = [Case(f"tests/core/test_a.py::test_{n}", of_the_file=pytest.mark.rotating) for n in range(count)]
    parts = {"halved": PARTS, "neighbours": PARTS, "thirds": 3}.get(kind, TWELFTHS)
    turns = [tried(cases, turn) for turn in range(PARTS)]
    assert all(turns)
    for first in range(PARTS):  # wherever one begins: commits go on and on
        in_a_row = [(turns * 2)[first + after] for after in range(parts)]
        assert {one for turn in in_a_row for one in turn} == {case.nodeid for case in cases}
    assert all(len(turn) <= -(-count // min(parts, count)) for turn in turns)


def test_what_is_no_matrix_is_always_tried() -> None:
    cases = [Case(f"tests/core/test_a.py::test_b[{n}]") for n in range(4)]
    cases += [Case(f"{MATRICES}test_a.py::test_{n}") for n in range(4)]
    assert all(len(tried(cases, turn)) == 8 for turn in range(TWELFTHS))


@pytest.mark.parametrize(("what", "first"), [("others", [0, 12]), ("the page", range(8))])
def test_neighbours_are_of_different_parts_unless_they_share_what_is_dear(what: str, first: Iterable[int]) -> None:
    assert tried(among(what, 24), 0) == [f"tests/core/test_{n}.py::test_a" for n in first]


def test_cases_that_open_no_window_stay_with_the_browser_whose_airflow_they_ask() -> None:
    """Else each worker that gets one of them starts an Airflow and a browser of its own."""
    cases = [Case(f"tests/browser/test_roles.py::test_a[{n}]") for n in range(3)]
    for case in cases:
        case.fixturenames = ("airflow", "world", "chromium")
    cases[0].fixturenames += ("browser", "visit")
    groups = order(cases, {"tests/browser/test_roles.py": 100.0})  # type: ignore[arg-type, type-var]
    assert len(set(groups.values())) == 1


def config(args_source: pytest.Config.ArgsSource, *args: str, **options: str) -> pytest.Config:
    """As much of pytest's configuration as the choice looks at."""
    return SimpleNamespace(  # type: ignore[return-value]
        args=list(args), args_source=args_source, getoption=lambda name: options.get(name.strip("-"), "")
    )


ARGS, TESTPATHS = pytest.Config.ArgsSource.ARGS, pytest.Config.ArgsSource.TESTPATHS


@pytest.mark.parametrize(
    ("asked", "named", "with_rotation"),
    [
        (config(TESTPATHS, "tests"), False, False),
        (config(ARGS, "tests/core", "tests/wal"), True, False),
        (config(ARGS, "tests/core/test_lag.py"), True, False),
        (config(ARGS, "tests/core/test_lag.py::test_a"), True, True),
        (config(TESTPATHS, "tests", k="kafka"), True, True),
        (config(TESTPATHS, "tests", m="release"), True, False),
    ],
)
def test_what_is_named_runs(
    asked: pytest.Config, named: bool, with_rotation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROTATION", raising=False)
    assert is_named(asked) is named
    monkeypatch.setenv("ROTATION", "3")
    assert is_named(asked) is with_rotation


def test_a_worker_believes_its_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """xdist hands the default folders to its workers as arguments."""
    monkeypatch.delenv("ROTATION", raising=False)
    for named in (True, False):
        worker = config(ARGS, "tests")
        worker.workerinput = {"paths_named": named}  # type: ignore[attr-defined]
        assert is_named(worker) is named


def test_the_part_does_not_depend_on_the_depth_of_a_clone(tmp_path: Path) -> None:
    def git(*words: str, folder: Path = tmp_path / "deep") -> None:
        who = ("-c", "user.name=n", "-c", "user.email=n@example.org")
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)

    (tmp_path / "deep").mkdir()
    git("init", "-q")
    numbers = set()
    for text in ("one", "two"):
        (tmp_path / "deep" / "file").write_text(text)
        git("add", "file")
        git("commit", "-qm", text)
        numbers.add(content_number(tmp_path / "deep"))
    git("clone", "-q", "--depth", "1", (tmp_path / "deep").as_uri(), "shallow", folder=tmp_path)
    assert content_number(tmp_path / "shallow") == content_number(tmp_path / "deep")
    git("commit", "-q", "--amend", "-m", "another message")
    numbers.add(content_number(tmp_path / "deep"))
    assert len(numbers) == 2
