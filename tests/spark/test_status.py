"""Offsets and topic ids of a location: recorded beside the batches, cut back with them, and taken out of a copy."""

from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import DataLossError, NewerReleaseError, StageError
from airflow_ft.protocol.model import RunKey, SparkPosition
from airflow_ft.protocol.pipelines import Lease
from airflow_ft.sources import KafkaSource
from airflow_ft.spark.driver import topics as driver_topics
from airflow_ft.spark.driver.topics import Topics
from airflow_ft.spark.state.location_files import entry, replace_file
from airflow_ft.spark.state.locations import SparkLocation, open_location
from airflow_ft.spark.state.reset import reset_state
from airflow_ft.spark.state.status import LocationStatus, leave_out, location_status, record_ids, recorded_ids
from airflow_ft.store import open_store
from airflow_ft.wal.checksums import write_checksum
from airflow_ft.wal.local import local_path
from tests.raising import raises

SOURCES = {"orders": KafkaSource(topics=["a", "b"]).to_json()}
FIRST = "\x00v1\n"  # what Spark writes before the JSON of a source's first offsets


def _location(root: Path, batches: int) -> SparkLocation:
    path = root / "p" / "spark" / "1-1"
    for batch in range(batches):
        for name, text in (
            (f"offsets/{batch}", f'v1\n{{"batchWatermarkMs":0}}\n{{"b":{{"0":{batch}}},"a":{{"0":7}}}}\n-'),
            (f"commits/{batch}", "v1\n{}"),
        ):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
        write_checksum(path / f"offsets/{batch}")
    (path / "sources/0").mkdir(parents=True)
    (path / "sources/0/0").write_text(FIRST + '{"a":{"0":1},"b":{"0":0}}')
    return SparkLocation(str(root), "p", path.as_uri(), batches - 1)


def test_ids_count_from_their_batch_on_and_are_cut_back_with_it(tmp_path: Path) -> None:
    old = _location(tmp_path, 4)
    record_ids(old, 0, {0: {"a": "A", "b": "B"}})
    record_ids(old, 2, {0: {"a": "A", "b": "B2"}})
    record_ids(old, 9, {0: {"a": "never published"}})
    for batch, expected in ((0, "B"), (1, "B"), (2, "B2"), (3, "B2")):
        copy = open_location(str(tmp_path), "p", 2, batch, SparkPosition(old.uri, batch), False)
        assert recorded_ids(copy) == {0: {"a": "A", "b": expected}}
    assert not (local_path(copy.uri) / "airflow_ft_topics/9").exists()
    found = location_status(SparkPosition(old.uri, 1))
    assert found == LocationStatus({0: {"a": {"0": 7}, "b": {"0": 1}}}, {0: {"a": "A", "b": "B"}})


def test_a_location_has_no_ids_where_none_were_recorded(tmp_path: Path) -> None:
    old = _location(tmp_path, 1)
    assert location_status(SparkPosition(old.uri, 0)).ids == {}


@pytest.mark.parametrize(("log", "version"), [("offsets", 2), ("commits", 3)])
def test_a_later_format_of_sparks_logs_is_refused(tmp_path: Path, log: str, version: int) -> None:
    """Format 2 of the offsets has a source's id before them, and another order."""
    location = _location(tmp_path, 1)
    data = f'v{version}\n{{"batchWatermarkMs":0}}\n1:{{"b":{{"0":3}}}}\n0:-'.encode()
    replace_file(location.uri, (log, "0"), data)
    with raises(NewerReleaseError, "newer_release"):
        entry(location.uri, log, 0)


def test_a_topic_is_taken_out_of_the_copy_alone(tmp_path: Path) -> None:
    old = _location(tmp_path, 2)
    before = {path: path.read_bytes() for path in local_path(old.uri).rglob("*") if path.is_file()}
    copy = open_location(str(tmp_path), "p", 2, 1, SparkPosition(old.uri, 1), False)
    leave_out(copy, {0: {"b": "B"}})
    assert copy.offsets(1) == [{"a": {"0": 7}}, None]
    assert copy.offsets(0) == old.offsets(0)
    place = local_path(copy.uri)
    assert (place / "offsets/1").read_text().splitlines()[:2] == ["v1", '{"batchWatermarkMs":0}']
    assert (place / "sources/0/0").read_text() == FIRST + '{"a":{"0":1}}'
    assert {path.name for path in (place / "offsets").iterdir()} == {"0", ".0.crc", "1"}, "a checksum that lies is gone"
    assert {path: path.read_bytes() for path in before} == before, "hard links of the copy were not written through"


class Brokers:
    """Ids by topic, as the brokers would give them; `late` is what those that lag answer first, one by one."""

    def __init__(self, **ids: str) -> None:
        self.now = ids
        self.late: list[dict[str, str]] = []

    def topics(self, recorded: Any = ()) -> dict[str, str]:
        return dict(self.late.pop(0) if self.late else self.now)

    def ids(self, names: Any) -> dict[str, str]:
        return {name: found for name, found in self.topics().items() if name in names}

    def close(self) -> None:
        pass


def _topics(brokers: Brokers, **more: Any) -> Topics:
    return Topics({0: ("orders", KafkaSource(**{"topics": ["a", "b"], **more}))}, {0: brokers})


BOTH = LocationStatus({0: {"a": {"0": 1}, "b": {"0": 2}}}, {0: {"a": "A", "b": "B"}})


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits before brokers are asked again."""
    monkeypatch.setattr(driver_topics, "_AGAIN_SECONDS", 0.0)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
@pytest.mark.parametrize("late", [{"a": "A", "b": "B0"}, {"a": "A"}, {}], ids=["older", "lacking", "nothing"])
def test_a_broker_that_lags_makes_no_loss(late: dict[str, str], strict: bool) -> None:
    """Lenient sources would read the topic from its beginning: all of its rows would come twice."""
    brokers = Brokers(a="A", b="B")
    topics = _topics(brokers, fail_on_data_loss=strict)
    brokers.late = [late]
    assert topics.begin(BOTH) == {} and topics.known == {0: {"a": "A", "b": "B"}}
    assert topics.reading(BOTH.offsets) == BOTH.ids
    brokers.late = [late]
    topics.check()
    brokers.late = [late]
    assert topics.explain() is None
    brokers.late = [late, late]
    with pytest.raises(DataLossError if strict else StageError) as caught:
        topics.check()
    assert isinstance(caught.value, DataLossError) is strict
    assert strict or (caught.value.code, "b" in caught.value.fields["topics"]) == ("topic_recreated", True)


def test_brokers_without_ids_tell_nothing(tmp_path: Path) -> None:
    brokers = Brokers(a="", b="")
    topics = _topics(brokers)
    assert topics.begin(BOTH) == {}
    assert topics.reading(BOTH.offsets) == {0: {"a": "", "b": ""}}
    brokers.now["a"] = "A"
    topics.check()
    assert topics.explain() is None


def test_a_new_topic_is_checked_from_its_first_batch_on() -> None:
    brokers = Brokers(a="A", b="B")
    topics = _topics(brokers, topics=(), pattern="a|b|c")
    assert topics.begin(BOTH) == {}
    brokers.now["c"] = "C"
    assert topics.reading({0: {**BOTH.offsets[0], "c": {"0": 9}}}) == {0: {"a": "A", "b": "B", "c": "C"}}
    topics.check()
    brokers.now["c"] = "C2"
    with pytest.raises(DataLossError) as lost:
        topics.check()
    assert "'c'" in lost.value.headline
    assert isinstance(topics.explain(), DataLossError)
    with raises(StageError, "topic_recreated", source="orders", topics=["d"]):
        topics.reading({0: {"d": {"0": 1}}})


def test_a_topic_recreated_as_the_first_query_starts_is_refused() -> None:
    brokers = Brokers(a="A", b="B")
    topics = _topics(brokers)
    topics.begin(LocationStatus())
    assert topics.check_start(BOTH.offsets) == BOTH.ids
    brokers.now["b"] = "B2"
    with raises(StageError, "topic_recreated", source="orders", topics=["b"]):
        topics.check_start(BOTH.offsets)


def test_a_topic_recreated_after_the_group_lookup_is_refused() -> None:
    """The group's offsets count the records of the older one: the first ones of the new one would be left out."""
    source = KafkaSource(topics=["a", "b"], starting_offsets="group_offsets", group_id="g")
    for now, refused in (({"a": "A", "b": "B"}, False), ({"a": "A", "b": "B2"}, True), ({"a": "A"}, True)):
        topics = Topics({0: ("orders", source)}, {0: Brokers(**now)}, {"orders": {"a": "A", "b": "B"}})
        with raises(StageError, "topic_recreated", topics=["b"]) if refused else nullcontext():
            assert topics.begin(LocationStatus()) == {}


def test_the_id_of_a_topic_that_is_not_read_for_a_while_is_kept() -> None:
    topics = _topics(Brokers(a="A"), topics=["a"])
    assert topics.begin(BOTH) == {}, "Spark itself says that b is not read any more"
    assert topics.ids_of(BOTH.offsets, BOTH.ids) == BOTH.ids


def test_a_deleted_topic_of_a_pattern_is_data_loss_without_an_id() -> None:
    lenient = {"topics": (), "pattern": "a|b", "fail_on_data_loss": False}
    assert _topics(Brokers(a="A"), **lenient).begin(LocationStatus(BOTH.offsets)) == {0: {"b": ""}}
    with pytest.raises(DataLossError) as lost:
        _topics(Brokers(a="A"), **{**lenient, "fail_on_data_loss": True}).begin(LocationStatus(BOTH.offsets))
    assert "'b'" in lost.value.headline


def test_ids_go_with_the_position_when_state_is_dropped(tmp_path: Path) -> None:
    old = _location(tmp_path, 3)
    record_ids(old, 1, {0: {"a": "A", "b": "B"}})
    store = open_store(f"sqlite:///{tmp_path}/ft.db")
    with closing(store):
        store.register("p")
        epoch = store.take_epoch("p", 0, {}, Lease("a person", 0, "reset", 1, 0), "test")
        run = RunKey("dag", "run")
        store.begin_stage("p", epoch, run)
        store.end_stage("p", epoch, run, SparkPosition(old.uri, 2))
        base = reset_state(store, "p", epoch, "test")
    assert base is not None and base.batch == -1
    found = location_status(base)
    assert found == LocationStatus({0: {"a": {"0": 7}, "b": {"0": 2}}}, {0: {"a": "A", "b": "B"}})
    copy = open_location(str(tmp_path), "p", 3, 1, base, False)
    leave_out(copy, {0: {"b": "B"}})
    after = location_status(copy.position(-1))
    assert after == LocationStatus({0: {"a": {"0": 7}}}, {0: {"a": "A", "b": "B"}})
    assert (local_path(copy.uri) / "sources/0/0").read_text().endswith('{"a":{"0":7}}')
    assert location_status(base) == found  # what was copied is as it was
