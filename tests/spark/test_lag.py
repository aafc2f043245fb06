"""How far a query is behind its sources, without Spark: what is counted, and that nothing rests on it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import StageError, StoreUnavailableError
from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.sources import KafkaSource
from airflow_ft.spark.driver import lag
from airflow_ft.spark.driver.gauges import FilesGauge, Gauge, KafkaGauge
from airflow_ft.spark.driver.kafka_admin import TopicAdmin
from airflow_ft.spark.driver.lag import LagWatch
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.task.launcher import LAG
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from tests.raising import raises
from tests.store.scene import PIPELINE, RUN, Scene
from tests.waiting import wait_for

Ends = dict[str, dict[str, int]]


def test_kafka_lag_counts_from_the_published_offsets_to_the_end() -> None:
    ends: Ends = {"a": {"0": 100, "1": 50}, "b": {"0": 7}}
    asked: list[Sequence[str]] = []

    def latest(topics: Sequence[str]) -> Ends:
        asked.append(topics)
        return ends

    begun: list[Ends | None] = [None]
    gauge = KafkaGauge(["a", "b"], latest, lambda: begun[0])
    assert gauge.measure(None) is None, "Spark has not looked up yet where it begins"
    begun[0] = {"a": {"0": 40, "1": 50}, "b": {"0": 0}}
    assert gauge.measure(None) == (67, 0)
    assert gauge.measure({"a": {"0": 90, "1": 50}, "b": {"0": 7}}) == (10, 57)
    ends["a"]["2"] = 5
    assert gauge.measure({"a": {"0": 100, "1": 50}, "b": {"0": 7}}) == (5, 67), "a partition that has come since"
    ends["a"] = {"0": 1}
    assert gauge.measure({"a": {"0": 100, "1": 50}, "b": {"0": 7}}) == (0, 67), "a topic that was made anew"
    assert set(map(tuple, asked)) == {("a", "b")}
    pattern = KafkaGauge([], latest, lambda: {"a": {"0": 0}})
    pattern.measure({"b": {"0": 1}, "a": {"0": 1}})
    assert asked[-1] == ["a", "b"], "of a pattern: the topics that Spark has found"


def test_folder_lag_counts_files_in_no_published_checkpoint() -> None:
    folder = dict.fromkeys(["1", "2", "3", "4", "5"], 7)
    logged = {0: ["1"], 1: ["2", "3"], 2: ["4"]}

    def read(after: int, last: int) -> dict[str, int]:
        return {file: 7 for number in range(after + 1, last + 1) for file in logged[number]}

    changed: list[Collection[str]] = []
    gauge = FilesGauge(lambda: folder, lambda: read(-1, 0), read, 0, changed.append)
    assert gauge.measure(None) == (4, 0)
    assert gauge.measure({"logOffset": 1}) == (2, 2)
    assert gauge.measure({"logOffset": 1}) == (2, 2)
    del folder["1"]  # a file that was read may go
    folder["5"] = 8  # and one that was not read yet may change
    assert gauge.measure({"logOffset": 2}) == (1, 3) and not changed
    folder["2"] = 8
    assert gauge.measure({"logOffset": 2}) == (1, 3) and gauge.measure({"logOffset": 2})
    folder["3"] = 6
    assert gauge.measure({"logOffset": 2}) == (1, 3)
    assert changed == [{"2"}, {"2", "3"}], "it is reported once, and again when there are others"
    folder |= {str(number): 7 for number in range(6, 100_007)}
    assert gauge.measure({"logOffset": 2}) is None
    for number in range(10, 100_007):
        del folder[str(number)]
    assert gauge.measure({"logOffset": 2}) is None, "nobody lists them again"
    assert FilesGauge(lambda: folder, lambda: None, read, 0).measure(None) is None, "too many were read"


class Scripted:
    """A gauge that says what it was told to, or raises it."""

    unit = Unit.RECORDS

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    def measure(self, position: Any) -> tuple[int, int] | None:
        self.asked.append(position)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DecisionLog]:
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        yield store


@pytest.fixture
def scene(store: DecisionLog) -> Scene:
    scene = Scene(store)
    scene.stage(2)
    return scene


def request(scene: Scene, **more: Any) -> StageRequest:
    values: dict[str, Any] = {"store_url": "sqlite:////x", "wal_root": "/wal", "job": "jobs.p", "sinks": ("s",)}
    return StageRequest(pipeline=PIPELINE, run=RUN, epoch=scene.epoch, attempt=1, **{**values, **more})


def watch(scene: Scene, gauges: Mapping[str, Gauge], **more: Any) -> LagWatch:
    positions = {name: {"start": 1, "end": name} for name in gauges}
    return LagWatch(scene.store, request(scene, **more), lambda: gauges, lambda: (2, positions))


def stored_lags(store: DecisionLog) -> list[Lag]:
    return [replace(each, at=None, rate=None) for each in store.lags([PIPELINE]).get(PIPELINE, [])]


def test_the_newest_checkpoint_keeps_the_lag_at_the_end(scene: Scene) -> None:
    gauge = Scripted((70, 30))
    with watch(scene, {"orders": gauge}).watching():
        pass
    assert stored_lags(scene.store) == [Lag("orders", Unit.RECORDS, 70, None, 30, 100)]
    assert [each.lag for each in scene.store.timings(PIPELINE, 2)] == [{"orders": 70}, {}]
    assert gauge.asked == ["orders"]


def test_what_comes_while_a_run_reads_is_behind_and_not_expected(scene: Scene) -> None:
    looking = watch(scene, {"orders": Scripted((100, 0), (80, 60))})
    assert looking.look({}) == [Lag("orders", Unit.RECORDS, 100, None, 0, 100)]
    [found] = looking.look({})
    assert (found.behind, found.done, found.expected) == (80, 60, 100)
    assert found.rate is not None and found.rate > 0


def test_a_stream_has_no_end_to_expect(scene: Scene) -> None:
    [found] = watch(scene, {"orders": Scripted((100, 50))}, streaming=True).look({})
    assert (found.behind, found.done, found.expected) == (100, 0, 0)


def test_a_source_that_tells_nothing_does_not_hide_the_others(scene: Scene) -> None:
    with watch(scene, {"files": Scripted(None), "orders": Scripted((7, 0))}).watching():
        pass
    assert [each.source for each in stored_lags(scene.store)] == ["orders"]


def test_whatever_goes_wrong_is_told_once_and_ends_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("EACH_SECONDS", "_FIRST_SECONDS"):
        monkeypatch.setattr(lag, name, 0.01)
    gauge = Scripted(OSError("no route"), StoreUnavailableError("away"), OSError("no route"), (7, 0))
    with caplog.at_level(logging.INFO, "airflow_ft.spark"), watch(scene, {"orders": gauge}).watching():
        wait_for(lambda: stored_lags(scene.store), 20, "it goes on looking")
    lines = [record.getMessage() for record in caplog.records if record.name == "airflow_ft.spark"]
    assert len([line for line in lines if line.endswith("no route")]) == 1
    match = LAG.match(lines[-1])
    assert match and match.groupdict() == {"source": "orders", "behind": "7", "unit": "records"}


def test_a_look_after_the_end_logs_nothing(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "airflow_ft.spark"), watch(scene, {"orders": Scripted((7, 0))}).watching():
        scene.store.close()
    assert not caplog.messages


def test_an_error_of_the_job_comes_through_without_a_last_look(scene: Scene) -> None:
    """Brokers that are away may be why, and would be waited for."""
    gauge = Scripted((7, 0))
    mine = ValueError("mine")
    with raises(ValueError) as caught, watch(scene, {"orders": gauge}).watching():
        raise mine
    assert caught.value is mine and not gauge.asked


def test_a_first_look_that_fails_is_repeated(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EACH_SECONDS", "_FIRST_SECONDS"):
        monkeypatch.setattr(lag, name, 0.01)
    opened: list[Exception] = [OSError("no route"), StoreUnavailableError("away")]

    def gauges() -> Mapping[str, Gauge]:
        if opened:
            raise opened.pop(0)
        return {"orders": Scripted((7, 0))}

    with LagWatch(scene.store, request(scene), gauges, lambda: None).watching():
        wait_for(lambda: stored_lags(scene.store), 20, "it is known after all")


def test_nobody_asks_a_client_that_is_closed() -> None:
    """A look that was under way when the attempt ended would open another one, which nobody ends."""
    made: list[object] = []

    class Admin(TopicAdmin):
        def _connect(self) -> Any:
            made.append(self)
            return made

    spark: Any = SimpleNamespace(_jvm=MagicMock())
    admin = Admin(spark, "orders", KafkaSource(topics=["a"]), ConnectionInfo("k", "kafka"))
    admin.close()
    with raises(StageError, "stage_failed", source="orders"):
        admin.latest(["a"])
    assert not made


def test_whoever_was_replaced_looks_no_more(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EACH_SECONDS", "_FIRST_SECONDS"):
        monkeypatch.setattr(lag, name, 0.01)
    gauge = Scripted((7, 0))
    looking = watch(scene, {"orders": gauge})
    scene.take()
    with looking.watching():
        looking._thread.join(20)
        assert not looking._thread.is_alive() and len(gauge.asked) == 1
    assert not stored_lags(scene.store)
