"""Which checkpoints `airflow ft verify` compares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_ft.protocol import verify
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.store import open_store
from tests.store.scene import PIPELINE, Scene


@contextmanager
def log_of(folder: Path, *, completed: int, staged: int) -> Iterator[Scene]:
    """Open a decision log with `staged` checkpoints. Those up to number `completed` are COMPLETED."""
    with closing(open_store(f"sqlite:///{folder}/ft.db")) as store:
        scene = Scene(store)
        scene.stage(staged)
        for number in range(1, completed + 1):
            scene.complete(number)
        yield scene


def test_verify_compares_all_confirmed_rows_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(delivered: Sequence[verify.Delivered], plan: ParticipantPlan) -> list[verify.SinkReport]:
        return [verify.SinkReport.begun(plan.name, plan.sinks, "t", delivered)]

    monkeypatch.setattr(verify, "PAGE", 2)
    with log_of(tmp_path, completed=7, staged=10) as scene:
        store = scene.store
        for number in (1, 2, 3):
            store.prune(PIPELINE, number)
        reports = verify.verify(store, PIPELINE, compared)
    assert {report.participant: report.numbers for report in reports} == dict.fromkeys(("db", "log"), (4, 5, 6, 7))


def test_verify_gets_all_plans_from_its_first_number_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared plans too: a sink may compare them in groups. Consecutive plans with equal settings count once."""
    found: dict[tuple[str, int], int] = {}

    def compared(delivered: Sequence[verify.Delivered], plan: ParticipantPlan) -> list[verify.SinkReport]:
        found[plan.name, len(delivered)] = len(delivered[0].others)
        return []

    monkeypatch.setattr(verify, "PAGE", 2)
    with log_of(tmp_path, completed=4, staged=5) as scene:
        store = scene.store
        scene.prepare(5)
        verify.verify(store, PIPELINE, compared, [2])
        verify.verify(store, PIPELINE, compared, [1, 2, 3, 4, 5])
    assert found == {("db", 1): 1, ("log", 1): 1, ("db", 5): 1, ("log", 5): 1}


def test_verify_says_which_deliveries_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision log knows them, also if the sink has lost its memory."""
    found: list[tuple[int, int]] = []

    def compared(delivered: Sequence[verify.Delivered], plan: ParticipantPlan) -> list[verify.SinkReport]:
        found.append((delivered[0].newest, delivered[0].newest_other))
        return []

    monkeypatch.setattr(verify, "PAGE", 2)
    with log_of(tmp_path, completed=4, staged=5) as scene:
        store = scene.store
        for numbers in ([], [2], [1, 4], [4]):
            verify.verify(store, PIPELINE, compared, numbers)
    assert found[::2] == found[1::2] == [(4, 0), (4, 4), (4, 3), (4, 0)]


def test_a_sink_may_ask_for_all_earlier_proofs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, list[int]]] = []

    def compared(delivered: Sequence[verify.Delivered], plan: ParticipantPlan) -> list[verify.SinkReport]:
        found.append((plan.name, [proof.number for proof in delivered[-1].earlier()]))
        return []

    with log_of(tmp_path, completed=4, staged=5) as scene:
        store = scene.store
        plan = store.checkpoint(PIPELINE, 4).plan
        assert plan is not None
        behind = replace(plan, participants=tuple(replace(each, predecessor=3) for each in plan.participants))
        fourth = replace(store.checkpoint(PIPELINE, 4), plan=behind)
        pages = store.checkpoints
        monkeypatch.setattr(
            store, "checkpoints", lambda *of: [fourth if each.number == 4 else each for each in pages(*of)]
        )
        verify.verify(store, PIPELINE, compared)
    assert found == [("db", [2, 1]), ("log", [2, 1])]


def test_a_number_that_only_a_lost_log_knew_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older log that has adopted the sinks begins behind the newest number that they had delivered."""
    found: set[tuple[int, int]] = set()

    def compared(delivered: Sequence[verify.Delivered], plan: ParticipantPlan) -> list[verify.SinkReport]:
        found.add((delivered[0].newest, delivered[0].newest_other))
        return []

    with log_of(tmp_path, completed=3, staged=3) as scene:
        store = scene.store
        plan = store.checkpoint(PIPELINE, 3).plan
        assert plan is not None
        behind = replace(plan, participants=tuple(replace(each, predecessor=7) for each in plan.participants))
        third = replace(store.checkpoint(PIPELINE, 3), plan=behind)
        pages = store.checkpoints
        monkeypatch.setattr(
            store, "checkpoints", lambda *of: [third if each.number == 3 else each for each in pages(*of)]
        )
        verify.verify(store, PIPELINE, compared)
    assert found == {(3, 7)}


@pytest.mark.parametrize(
    ("differing", "meanwhile", "seen"),
    [
        (0, 1, [(2, 0)]),
        (1, 0, [(2, 0)]),
        (1, 1, [(2, 0), (3, 0)]),
        (2, 1, [(2, 0), (3, 0)]),
        (2, 2, [(2, 0), (3, 0)]),
    ],
)
def test_a_difference_is_looked_at_again_after_a_delivery(
    tmp_path: Path, differing: int, meanwhile: int, seen: list[tuple[int, int]]
) -> None:
    """`differing` and `meanwhile`: how many looks find a difference, and during how many a number is delivered."""
    found: list[tuple[int, int]] = []

    def compared(delivered: Sequence[verify.Delivered], plan: ParticipantPlan) -> list[verify.SinkReport]:
        report = verify.SinkReport.begun(plan.name, plan.sinks, "t", delivered)
        if plan.name != "db":
            return [report]
        found.append((delivered[0].newest, delivered[0].newest_other))
        if len(found) <= meanwhile:
            scene.complete(2 + len(found))
        return [replace(report, missing=1) if len(found) <= differing else report]

    with log_of(tmp_path, completed=2, staged=4) as scene:
        [report, _] = verify.verify(scene.store, PIPELINE, compared)
    assert found == seen
    assert report.is_complete is (differing < len(found) or not differing)
    assert bool(report.notes) is (meanwhile == 2), "it says so if numbers are still delivered"


def test_numbers_that_a_person_names_are_compared_again_alone(tmp_path: Path) -> None:
    found: list[tuple[int, int, int]] = []

    def compared(delivered: Sequence[verify.Delivered], plan: ParticipantPlan) -> list[verify.SinkReport]:
        report = verify.SinkReport.begun(plan.name, plan.sinks, "t", delivered)
        if plan.name == "db":
            found.append((len(delivered), delivered[0].newest, delivered[0].newest_other))
            if len(found) == 1:
                scene.complete(3)
                return [replace(report, missing=1)]
        return [report]

    with log_of(tmp_path, completed=2, staged=3) as scene:
        verify.verify(scene.store, PIPELINE, compared, [2])
    assert found == [(1, 2, 0), (1, 3, 3)]
