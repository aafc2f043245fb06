"""What `make test` leaves out: each commit tries something of every matrix, twelve in a row all of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.tiers import HALVED, MATRICES, PARTS, TWELFTHS, order, out_of_turn


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
    ["of tests/integration", "marked", "marked together", "marked as a file", "among others", "neighbours", "halved"],
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
        cases = among(*HALVED, count)
    else:
        cases = [Case(f"tests/core/test_a.py::test_{n}", of_the_file=pytest.mark.rotating) for n in range(count)]
    parts = PARTS if kind == "halved" else TWELFTHS
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


@pytest.mark.parametrize(("what", "first"), [("others", [0, 12]), ("Airflow", [0, 1])])
def test_neighbours_are_of_different_parts_unless_they_share_what_is_dear(what: str, first: list[int]) -> None:
    assert tried(among(what, 24), 0) == [f"tests/core/test_{n}.py::test_a" for n in first]


def test_cases_that_open_no_window_stay_with_the_browser_whose_airflow_they_ask() -> None:
    """Else each worker that gets one of them starts an Airflow and a browser of its own."""
    cases = [Case(f"tests/browser/test_roles.py::test_a[{n}]") for n in range(3)]
    for case in cases:
        case.fixturenames = ("airflow", "world", "chromium")
    cases[0].fixturenames += ("browser", "visit")
    groups = order(cases, {"tests/browser/test_roles.py": 100.0})  # type: ignore[arg-type, type-var]
    assert len(set(groups.values())) == 1
