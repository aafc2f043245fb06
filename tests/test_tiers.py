"""The choice of tests: the fixed set, its parts, and what is named."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tiers import (
    MATRICES,
    PARTS,
    SAMPLE,
    content_number,
    is_named,
    not_fixed,
    order,
    part_of,
    unknown_names,
)


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
        return self._closest.mark if name == "sampled" and self._closest else None


def tried(cases: list[Case], named: set[str] | None = None) -> list[str]:
    """Return the names of the cases in the fixed set."""
    left_out = not_fixed(cases, named or set())  # type: ignore[arg-type]
    return [case.nodeid for case in cases if case not in left_out]


def among(what: str, count: int) -> list[Case]:
    mark = pytest.mark.sampled(among=what)
    return [Case(f"tests/protocol/test_{n}.py::test_a", of_the_file=mark) for n in range(count)]


def matrix(kind: str, count: int) -> list[Case]:
    if kind == "of tests/integration":
        return [Case(f"{MATRICES}test_a.py::test_b[{n}]") for n in range(count)]
    if kind == "marked":
        return [Case(f"tests/protocol/test_a.py::test_b[{n}]", own=pytest.mark.sampled) for n in range(count)]
    if kind == "marked together":
        return [Case(f"tests/protocol/test_a.py::test_{n}", own=pytest.mark.sampled("of these")) for n in range(count)]
    return [Case(f"tests/protocol/test_a.py::test_{n}", of_the_file=pytest.mark.sampled) for n in range(count)]


@pytest.mark.parametrize("count", [1, 2, 12, 13, 25])
@pytest.mark.parametrize("kind", ["of tests/integration", "marked", "marked together", "marked as a file"])
def test_the_fixed_set_has_the_same_sample_of_a_matrix_each_time(count: int, kind: str) -> None:
    chosen = tried(matrix(kind, count))
    assert len(chosen) == -(-count // SAMPLE)
    assert sorted(tried(matrix(kind, count)[::-1])) == sorted(chosen), "whatever the order"
    more = tried(matrix(kind, count + 1))
    assert len(set(chosen) - set(more)) <= 1, "a new case takes at most one other's place"


def test_a_matrix_may_name_a_share_of_its_own() -> None:
    cases = [Case(f"tests/spark/test_a.py::test_b[{n}]", own=pytest.mark.sampled(one_in=6)) for n in range(13)]
    assert len(tried(cases)) == 3


def test_of_a_group_the_fixed_set_has_what_the_file_names() -> None:
    named = {"tests/protocol/test_1.py::test_a", "tests/protocol/test_2.py"}
    assert tried(among("others", 4), named) == ["tests/protocol/test_1.py::test_a", "tests/protocol/test_2.py::test_a"]
    assert unknown_names(among("others", 2), named) == ["tests/protocol/test_2.py"]  # type: ignore[arg-type]


def test_other_tests_are_all_in_the_fixed_set() -> None:
    cases = [Case(f"tests/protocol/test_a.py::test_b[{n}]") for n in range(4)]
    cases += [Case(f"{MATRICES}test_a.py::test_{n}") for n in range(4)]
    assert len(tried(cases)) == 8


def test_the_parts_are_together_what_the_fixed_set_leaves_out() -> None:
    left_out = among("others", 2 * PARTS + 5)
    parts = [part_of(left_out, number) for number in range(PARTS)]  # type: ignore[arg-type]
    assert sorted(case.nodeid for part in parts for case in part) == sorted(case.nodeid for case in left_out)
    assert {len(part) for part in parts} == {2, 3}


def test_cases_without_a_window_stay_with_their_shared_browser() -> None:
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
    ("asked", "named"),
    [
        (config(TESTPATHS, "tests"), False),
        (config(ARGS, "tests/protocol", "tests/wal"), True),
        (config(ARGS, "tests/protocol/test_lag.py::test_a"), True),
        (config(TESTPATHS, "tests", k="kafka"), True),
        (config(TESTPATHS, "tests", m="release"), True),
    ],
)
def test_what_is_named_runs(asked: pytest.Config, named: bool) -> None:
    assert is_named(asked) is named


def test_of_what_is_named_the_fixed_set_can_be_asked_for() -> None:
    assert not is_named(config(ARGS, "tests/protocol", **{"fixed-set": "yes"}))


def test_a_worker_believes_its_controller() -> None:
    """xdist hands the default folders to its workers as arguments."""
    for named in (True, False):
        worker = config(ARGS, "tests")
        worker.workerinput = {"paths_named": named}  # type: ignore[attr-defined]
        assert is_named(worker) is named


def test_the_seed_does_not_depend_on_the_depth_of_a_clone(tmp_path: Path) -> None:
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
