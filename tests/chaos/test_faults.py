"""The choice of kills: repeatable by its seed, and at the moment that it says."""

from __future__ import annotations

import pytest

from tests.chaos.__main__ import _arguments
from tests.chaos.decision_log import Event
from tests.chaos.faults import FAULTS, Moment, choose, deck
from tests.chaos.report import Kill, Report
from tests.chaos.savepoints.run import SAVEPOINT_FAULTS
from tests.chaos.streams.run import FAULTS as STREAM_FAULTS
from tests.chaos.streams.run import possible


def attempt(id: int, participant: str, number: int = 1) -> Event:
    return Event(id, number, 1, "ATTEMPT", "", {"participant": participant})


def test_a_seed_repeats_faults_moments_and_delays() -> None:
    def drawn(seed: int) -> list[str]:
        return [str(choose(fault, seed, number, 0)) for number, fault in enumerate(deck(seed, 30), 1)]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)
    assert len({str(choose(FAULTS["Kafka"], 7, 1, repeat)) for repeat in range(6)}) > 1


def test_every_fault_comes_before_any_comes_again() -> None:
    assert {fault.name for fault in deck(3, len(FAULTS))} == set(FAULTS)
    assert [fault.name for fault in deck(3, 4, ["Kafka"])] == ["Kafka"] * 4


def test_an_attempt_belongs_to_the_phase_of_its_checkpoint() -> None:
    prepare, commit = Moment("ATTEMPT", 1, "m", "prepare"), Moment("ATTEMPT", 1, "m", "commit")
    events = [attempt(1, "m")]
    assert prepare.reached(events)
    assert not commit.reached(events)
    events += [Event(2, 2, 1, "PREPARED", "", {}), attempt(3, "m")]
    assert not commit.reached(events)  # another checkpoint was prepared
    events += [Event(4, 1, 1, "PREPARED", "", {}), attempt(5, "k")]
    assert not commit.reached(events)  # another participant's
    assert commit.reached([*events, attempt(6, "m")])


def test_the_nth_event_is_waited_for() -> None:
    events = [Event(n, n, 1, "TRIGGERED", "", {}) for n in (1, 2)]
    assert Moment("TRIGGERED", 2).reached(events)
    assert not Moment("TRIGGERED", 3).reached(events)


def test_a_report_is_exact_only_when_all_was_done_and_judged() -> None:
    kill = Kill("Kafka", "now", "1 STAGED", "Kafka", "no retry", 1.0, 0)
    right = Report(1, 1, kills=[kill], judged=True)
    assert right.exact
    assert "\nEXACT" in str(right)
    for spoiled in (
        Report(1, 1, kills=[kill]),
        Report(1, 2, kills=[kill], judged=True),
        Report(1, 1, kills=[kill], judged=True, violations=["I2: lost"]),
        Report(1, 1, kills=[kill], judged=True, interrupted=True),
    ):
        assert not spoiled.exact
        assert "NOT EXACT" in str(spoiled)


@pytest.mark.parametrize("faults", [STREAM_FAULTS, SAVEPOINT_FAULTS])
def test_the_servers_of_the_logs_are_killed_only_where_they_are(
    faults: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(possible(faults, "postgres", "s3", "yarn")) == set(faults)
    for store, wal, option in (("sqlite", "s3", "--store=postgres"), ("postgres", "local", "--wal=s3")):
        [lacking] = set(faults) - set(possible(faults, store, wal, "yarn"))
        chosen = ["--only", "streams", "--stream-fault", lacking]
        assert _arguments([*chosen, option]).stream_fault == [lacking]
        with pytest.raises(SystemExit):
            _arguments(chosen)
        assert "needs --store postgres" in capsys.readouterr().err


def test_yarn_faults_require_yarn_and_a_shared_write_ahead_log(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--only", "streams", "--stream-fault", "kill -9 of an executor of YARN"]
    for wal in ("hdfs", "s3"):
        assert _arguments([*chosen, "--master=yarn", f"--wal={wal}"]).master == "yarn"
    for wrong in (chosen, [*chosen, "--master=yarn"], ["--only=savepoints", "--master=yarn", "--wal=hdfs"]):
        with pytest.raises(SystemExit):
            _arguments(wrong)
        assert "--master yarn" in capsys.readouterr().err
