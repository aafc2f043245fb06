"""Where Kafka sources begin: frozen once, each by itself, whatever is changed beside it."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import DataLossError, StageError
from airflow_ft.protocol.model import CheckpointingMode, RunKey, SparkPosition, canonical_json
from airflow_ft.sources import FileSource, KafkaSource
from airflow_ft.spark.driver import durable
from airflow_ft.spark.driver.inputs import named_positions, sources_by_place, unfrozen_sources
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.state.beginnings import Beginnings, copy_frozen
from airflow_ft.spark.state.locations import (
    SparkLocation,
    behind_the_beginning,
    incarnation_of,
    new_beginning,
    open_location,
    remember_incarnation,
)
from airflow_ft.spark.state.status import Ids, LocationStatus
from airflow_ft.wal.local import local_path
from tests.raising import raises

FIRST = "\x00v1\n"
"""What Spark writes before the JSON of a source's first offsets."""
ORDERS = KafkaSource(topics=["a", "b"], starting_offsets="latest").to_json()
REFUNDS = KafkaSource(topics=["refunds"], starting_offsets="latest").to_json()
AT_FIVE = {"a": {"0": 5}, "b": {"0": 6}}


def _frozen(root: Path, incarnation: str = "", **sources: Any) -> Beginnings:
    return Beginnings(str(root), "p", incarnation, sources or {"orders": ORDERS})


def _location_status(frozen: Beginnings, places: Mapping[int, str]) -> LocationStatus:
    return frozen.location_status(frozen.read(places))


def _restore(frozen: Beginnings, location: SparkLocation, places: Mapping[int, str], known: Ids, void: Ids) -> None:
    frozen.restore(location, frozen.read(places), known, void)


def _attempt(root: Path, number: int, **looked_up: Mapping[str, Any]) -> SparkLocation:
    """A location in which Spark has looked up where sources begin, in this order."""
    location = open_location(str(root), "p", 1, number, None, False)
    for index, offsets in enumerate(looked_up.values()):
        _file(location, index).parent.mkdir(parents=True)
        _file(location, index).write_text(FIRST + canonical_json(offsets))
    return location


def _request(root: Path, **more: Any) -> StageRequest:
    return StageRequest(
        pipeline="p",
        run=RunKey("dag", "run"),
        epoch=1,
        attempt=2,
        store_url="sqlite://",
        wal_root=str(root),
        job="jobs.orders",
        sinks=("rows",),
        **more,
    )


def _file(location: SparkLocation, index: int = 0) -> Path:
    return local_path(location.uri) / "sources" / str(index) / "0"


def _files(root: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (root / "p/spark").glob("*.json")}


def _ids(offsets: Mapping[int, Any]) -> dict[int, dict[str, str]]:
    return {index: {topic: topic.upper() for topic in topics} for index, topics in offsets.items()}


def test_it_is_frozen_once_and_given_to_the_next_attempt(tmp_path: Path) -> None:
    frozen, first = _frozen(tmp_path), _attempt(tmp_path, 1, orders=AT_FIVE)
    assert not frozen.has("orders") and _location_status(frozen, {0: "orders"}) == LocationStatus()
    frozen.freeze(first, {0: "orders"}, _ids)
    frozen.freeze(first, {0: "orders"}, _ids)
    assert frozen.has("orders")
    assert _location_status(frozen, {0: "orders"}) == LocationStatus({0: AT_FIVE}, {0: {"a": "A", "b": "B"}})
    later = _attempt(tmp_path, 2)
    _restore(frozen, later, {0: "orders"}, {}, {})
    assert _file(later).read_bytes() == _file(first).read_bytes()
    # A dry run begins there, too, in a log of its own that has nothing else of the pipeline.
    copy_frozen(str(tmp_path), "p", str(tmp_path / "other"), "p")
    assert _files(tmp_path / "other") == _files(tmp_path) and len(_files(tmp_path)) == 1
    # A zombie that began elsewhere must not publish, nor one that began at the same offsets of a recreated topic.
    zombie = _attempt(tmp_path, 3, orders={**AT_FIVE, "a": {"0": 9}})
    with raises(StageError, "starting_position_taken", source="orders"):
        frozen.freeze(zombie, {0: "orders"}, _ids)
    with raises(StageError, "starting_position_taken", source="orders"):
        frozen.freeze(first, {0: "orders"}, lambda _: {0: {"a": "newer", "b": "B"}})
    # Nor one that cannot tell which topics these are.
    with pytest.raises(ZeroDivisionError):
        _frozen(tmp_path, refunds=REFUNDS).freeze(_attempt(tmp_path, 4, refunds={}), {0: "refunds"}, lambda _: 1 / 0)  # type: ignore[arg-type,return-value]
    assert len(_files(tmp_path)) == 1


def test_it_stays_whatever_else_the_job_reads(tmp_path: Path) -> None:
    """They were frozen for the set of sources: a source more, and "latest" was another moment for all of them."""
    _frozen(tmp_path).freeze(_attempt(tmp_path, 1, orders=AT_FIVE), {0: "orders"}, _ids)
    both = _frozen(tmp_path, refunds=REFUNDS, orders=ORDERS, lines=FileSource(path="/lines", format="text").to_json())
    assert both.has("orders") and not both.has("refunds") and not both.has("lines")
    places = {0: "refunds", 1: "orders"}
    later = _attempt(tmp_path, 2)
    _restore(both, later, places, {}, {})
    assert not _file(later, 0).exists() and _file(later, 1).read_text() == FIRST + canonical_json(AT_FIVE)
    _file(later, 0).parent.mkdir()
    _file(later, 0).write_text(FIRST + '{"refunds":{"0":3}}')
    both.freeze(later, places, _ids)
    again = _attempt(tmp_path, 3)
    _restore(_frozen(tmp_path, refunds=REFUNDS), again, {0: "refunds"}, {}, {})
    assert _file(again).read_text() == FIRST + '{"refunds":{"0":3}}'


def test_who_dies_in_between_has_frozen_some(tmp_path: Path) -> None:
    both, places = _frozen(tmp_path, orders=ORDERS, refunds=REFUNDS), {0: "orders", 1: "refunds"}
    dead = _attempt(tmp_path, 1, orders=AT_FIVE, refunds={"refunds": {"0": 3}})
    both.freeze(dead, {0: "orders"}, _ids)
    late = _attempt(tmp_path, 2, orders={**AT_FIVE, "a": {"0": 9}}, refunds={"refunds": {"0": 4}})
    with raises(StageError, "starting_position_taken", source="orders"):
        both.freeze(late, places, _ids)
    last = _attempt(tmp_path, 3)
    _restore(both, last, places, {}, {})
    assert _file(last, 0).read_bytes() == _file(dead, 0).read_bytes() and not _file(last, 1).exists()


def test_a_full_refresh_ignores_starts_of_earlier_attempts(tmp_path: Path) -> None:
    former, first = _frozen(tmp_path), _attempt(tmp_path, 1, orders=AT_FIVE)
    former.freeze(first, {0: "orders"}, _ids)
    beginning = new_beginning(str(tmp_path), "p", 3)
    assert behind_the_beginning(beginning) is None and incarnation_of(beginning) == "p/3-0"
    assert incarnation_of(None) == incarnation_of(first.position(1)) == ""
    own = _frozen(tmp_path, incarnation_of(beginning))
    former.freeze(first, {0: "orders"}, _ids)  # it slept there
    assert former.has("orders"), "whoever dies before the one write has changed nothing"
    assert not own.has("orders") and _location_status(own, {0: "orders"}) == LocationStatus()
    late = _attempt(tmp_path, 4)
    _restore(own, late, {0: "orders"}, {}, {})
    assert not _file(late).exists()
    own.freeze(_attempt(tmp_path, 5, orders={"a": {"0": 170}}), {0: "orders"}, _ids)
    assert _location_status(own, {0: "orders"}).offsets == {0: {"a": {"0": 170}}}


def test_topics_whose_positions_are_void_are_taken_out(tmp_path: Path) -> None:
    """Nothing of it was published yet. Each attempt was told that another one had begun elsewhere."""
    frozen, first = _frozen(tmp_path), _attempt(tmp_path, 1, orders=AT_FIVE)
    frozen.freeze(first, {0: "orders"}, _ids)
    known = {0: {"a": "A", "b": "B2"}}
    for attempt, void in ((2, {0: {"b": "B"}}), (3, {})):
        later = _attempt(tmp_path, attempt)
        _restore(frozen, later, {0: "orders"}, known, void)
        assert _file(later).read_text() == FIRST + '{"a":{"0":5}}'
        assert _location_status(frozen, {0: "orders"}) == LocationStatus({0: {"a": {"0": 5}}}, {0: {"a": "A"}})
        frozen.freeze(later, {0: "orders"}, _ids)
    with raises(StageError, "starting_position_taken", source="orders"):
        frozen.freeze(first, {0: "orders"}, _ids)


def test_ids_are_those_that_the_brokers_tell_now(tmp_path: Path) -> None:
    """Older brokers have none: what was frozen with some could never be frozen again."""
    frozen, first = _frozen(tmp_path), _attempt(tmp_path, 1, orders=AT_FIVE)
    frozen.freeze(first, {0: "orders"}, _ids)
    later = _attempt(tmp_path, 2)
    _restore(frozen, later, {0: "orders"}, {0: {"a": "", "b": ""}}, {})
    frozen.freeze(later, {0: "orders"}, lambda _: {0: {"a": "", "b": ""}})


def test_a_start_that_a_zombie_freezes_meanwhile_is_not_used(tmp_path: Path) -> None:
    """A topic is recreated, and a late attempt freezes where it was: its offsets would pass for those of the new one,
    whose first records nobody would read.
    """
    frozen, zombie = _frozen(tmp_path), _attempt(tmp_path, 1, orders=AT_FIVE)
    begun, later = frozen.read({0: "orders"}), _attempt(tmp_path, 2)
    frozen.freeze(zombie, {0: "orders"}, _ids)
    frozen.restore(later, begun, {0: {"a": "A2", "b": "B"}}, {})
    assert not _file(later).exists() and _location_status(frozen, {0: "orders"}).ids == {0: {"a": "A", "b": "B"}}
    _file(later).parent.mkdir(parents=True)
    _file(later).write_text(FIRST + canonical_json(AT_FIVE))
    with raises(StageError, "starting_position_taken", source="orders"):
        frozen.freeze(later, {0: "orders"}, lambda _: {0: {"a": "A2", "b": "B"}})


def test_a_source_that_is_read_twice_begins_twice(tmp_path: Path) -> None:
    """Joined with itself it has two places. They were one file, and the first attempt was told that it is another."""
    frozen, places = _frozen(tmp_path, orders=ORDERS, refunds=REFUNDS), {0: "orders", 1: "refunds", 2: "orders"}
    later_by_one = {**AT_FIVE, "a": {"0": 6}}
    frozen.freeze(_attempt(tmp_path, 1, orders=AT_FIVE, refunds={"refunds": {}}, again=later_by_one), places, _ids)
    assert _location_status(frozen, places).offsets == {0: AT_FIVE, 1: {"refunds": {}}, 2: later_by_one}
    later = _attempt(tmp_path, 2)
    _restore(frozen, later, places, {}, {})
    frozen.freeze(later, places, _ids)
    assert _file(later, 2).read_text() == FIRST + canonical_json(later_by_one)
    assert _location_status(frozen, {0: "orders"}).offsets == {0: AT_FIVE}


def test_it_goes_along_into_another_log(tmp_path: Path) -> None:
    """`wal_root` may be changed, and the base lies in the old one then: "latest" was another moment."""
    old, new = tmp_path / "old", tmp_path / "new"
    base = open_location(str(old), "p", 1, 1, None, False)
    request = _request(old, sources={"orders": ORDERS}, base=base.position(1))
    Beginnings.of(request).freeze(_attempt(old, 2, orders=AT_FIVE), {0: "orders"}, _ids)
    frozen, later = Beginnings.of(replace(request, wal_root=str(new))), _attempt(new, 3)
    assert frozen.has("orders")
    _restore(frozen, later, {0: "orders"}, {}, {})
    frozen.freeze(later, {0: "orders"}, _ids)
    assert _files(new) == _files(old) and _file(later).read_text() == FIRST + canonical_json(AT_FIVE)


def test_an_attempt_stays_in_the_life_in_which_it_has_begun(tmp_path: Path) -> None:
    """Also when what it goes on from is swept behind it: it would freeze where another life begins."""
    base = open_location(str(tmp_path), "p", 1, 1, None, False)
    remember_incarnation(base, "p/3-0")
    frozen = Beginnings.of(_request(tmp_path, sources={"orders": ORDERS}, base=base.position(1)))
    shutil.rmtree(local_path(base.uri))
    frozen.freeze(_attempt(tmp_path, 2, orders=AT_FIVE), {0: "orders"}, _ids)
    assert not _frozen(tmp_path).has("orders") and _frozen(tmp_path, "p/3-0").has("orders")


@pytest.mark.parametrize(
    "changed",
    [
        {"fail_on_data_loss": False},
        {"max_offsets_per_trigger": 4},
        {"group_id": "lag"},
        {"isolation_level": "read_uncommitted"},
        {"options": {"minPartitions": "8"}},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_it_stays_when_something_else_than_the_start_is_changed(tmp_path: Path, changed: dict[str, Any]) -> None:
    """Else "latest" would become another moment with the setting that gets a first batch through."""
    _frozen(tmp_path).freeze(_attempt(tmp_path, 1, orders=AT_FIVE), {0: "orders"}, _ids)
    assert _frozen(tmp_path, orders={**ORDERS, **changed}).has("orders")


@pytest.mark.parametrize(
    "changed",
    [{"starting_offsets": "earliest"}, {"topics": ["a"]}, {"conn_id": "other"}],
    ids=lambda each: next(iter(each)),
)
def test_another_start_is_another_beginning(tmp_path: Path, changed: dict[str, Any]) -> None:
    _frozen(tmp_path).freeze(_attempt(tmp_path, 1, orders=AT_FIVE), {0: "orders"}, _ids)
    assert not _frozen(tmp_path, orders={**ORDERS, **changed}).has("orders")
    assert not _frozen(tmp_path, others=ORDERS).has("others")


@pytest.mark.parametrize("mode", list(CheckpointingMode))
def test_at_most_once_looks_it_up_each_time(tmp_path: Path, mode: CheckpointingMode) -> None:
    """Whatever attempts of another mode have frozen."""
    source = KafkaSource(topics=["a"], starting_offsets="group_offsets", group_id="theirs").to_json()
    _frozen(tmp_path, orders=source).freeze(_attempt(tmp_path, 1, orders={"a": {"0": 5}}), {0: "orders"}, _ids)
    request = _request(tmp_path, sources={"orders": source}, checkpointing=CheckpointConfig(mode=mode))
    base = SparkPosition("file:///wal/p/spark/1-1", 3)
    told = StageRequest.from_json(replace(request, base=base).to_json())
    assert (told.base or told.former_base) == base and (told.base is None) == request.starts_from_scratch
    begins = unfrozen_sources(request)
    assert begins == ({"orders"} if mode is CheckpointingMode.AT_MOST_ONCE else set())


def test_each_use_of_a_source_has_its_own_positions(tmp_path: Path) -> None:
    """They were found by the number of names, so each source behind it had the positions of another one."""
    sources = {
        "orders": ORDERS,
        "refunds": KafkaSource(topics=["refunds"], starting_offsets={"refunds": {0: 900}}).to_json(),
    }
    request = _request(tmp_path, sources=sources, incarnation="p/3-0")
    declared = sources_by_place(request, ["orders", "orders", "refunds"])
    assert [getattr(source, "topics", ()) for source in declared.values()] == [("a", "b"), ("a", "b"), ("refunds",)]
    location = _attempt(tmp_path, 1, orders=AT_FIVE, again=AT_FIVE, refunds={"refunds": {"0": 900}})
    ends = [AT_FIVE, {"a": {"0": 7}}, {"refunds": {"0": 901}}]
    assert {name: each["end"] for name, each in named_positions(list(declared), ends, ends).items()} == {
        "orders": ends[0], "orders-1": ends[1], "refunds": ends[2],
    }  # fmt: skip
    topics: Any = SimpleNamespace(known={index: {} for index in range(3)})
    for delivered, skipped in (
        ({"refunds": {"end": {"refunds": {"0": 100}}}}, {"source": "refunds", "records": 800}),
        ({"orders": {"end": {"a": {"0": 9}, "b": {"0": 5}}}}, {"source": "orders"}),
        (
            {"orders": {"end": {"a": {"0": 9}, "b": {"0": 9}}}, "orders-1": {"end": {"a": {"0": 4}}}},
            {"source": "orders-1"},
        ),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(durable, "delivered_positions", lambda *_, positions=delivered: positions)
            frozen: Any = replace(request, incarnation="p/3-0")
            before = durable.Durable(None, location, frozen, declared, topics, lambda: None)  # type: ignore[arg-type]
            with raises(DataLossError, "records_skipped", **skipped):
                before.freeze()
