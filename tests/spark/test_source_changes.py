"""Other sources in a copy of a location: what Spark's files say afterwards, without Spark."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.sources import CustomSource
from airflow_ft.spark.driver.opening import are_noted, keep_kinds, refuse_other_kinds
from airflow_ft.spark.state.location_files import KINDS_FILE, PATHS_FILE, keep, note
from airflow_ft.spark.state.locations import (
    SparkLocation,
    check_sources,
    copy_location,
    incarnation_in,
    remember_incarnation,
    set_places,
)
from airflow_ft.spark.state.reset import write_source_positions
from airflow_ft.spark.state.source_changes import (
    change_sources,
    keep_left_out,
    known_sources,
    source_change,
)
from airflow_ft.spark.state.source_log import all_entries
from airflow_ft.spark.state.status import LocationStatus, location_status, record_ids, recorded_ids
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.local import local_path
from tests.raising import raises

KAFKA = {"orders": {"0": 17}}
ADDED = {"kind": "kafka", "topics": ["refunds"], "starting_offsets": "latest"}


def _location(
    root: Path, names: list[str], lines: list[str], places: list[int] | None = None, attempt: str = "1-1"
) -> SparkLocation:
    """One of two micro-batches."""
    uri = (root / "p/spark" / attempt).as_uri()
    location = SparkLocation(str(root), "p", uri, 1)
    uses = range(len(lines)) if places is None else places
    for log, output in (("offsets", "\n".join(["v1", "{}", *(lines[n] for n in uses)])), ("commits", "v1\n{}")):
        for batch in range(2):
            file = local_path(uri) / log / str(batch)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(output)
    for index, line in enumerate(lines):
        if line.startswith('{"orders"'):
            first = local_path(uri) / "sources" / str(index) / "0"
            first.parent.mkdir(parents=True)
            first.write_text('\0v1\n{"orders":{"0":3}}')
    check_sources(location, names)
    if places:
        (local_path(uri) / "airflow_ft_places.json").write_text(json.dumps(places))
    return location


def _changed(location: SparkLocation, names: list[str], to: str, places: list[int] | None = None) -> SparkLocation:
    change = source_change("p", SparkPosition(location.uri, location.batch), names)
    assert change is not None
    copy = copy_location(location, f"{location.uri.rpartition('/')[0]}/{to}")
    change_sources(change, copy, range(len(names)) if places is None else places)
    return copy


def _first(location: SparkLocation, index: int) -> Any:
    return json.loads((local_path(location.uri) / f"sources/{index}/0").read_text().partition("\n")[2])


def test_lines_folders_and_ids_follow_the_names(tmp_path: Path) -> None:
    old = _location(tmp_path, ["numbers", "orders"], ['"a text"', json.dumps(KAFKA, separators=(",", ":"))])
    record_ids(old, 1, {1: {"orders": "id"}})
    base = SparkPosition(old.uri, 1)
    change = source_change("p", base, ["orders", "more", "numbers"])
    assert change is not None and change.added == {1: "more"}
    assert change.location_status(location_status(base)) == LocationStatus({0: KAFKA}, {0: {"orders": "id"}})
    new = _changed(old, ["orders", "more", "numbers"], "2-1", places=[0, 1, 2, 0])
    assert new.sources() == ["orders", "more", "numbers"] and new.places() == [0, 1, 2, 0]
    assert new.offsets(1) == new.offsets(0) == [KAFKA, None, "a text"]
    assert [len((local_path(new.uri) / f"offsets/{n}").read_text().split("\n")) for n in (0, 1)] == [6, 6]
    assert _first(new, 0) == {"orders": {"0": 3}} and recorded_ids(new) == {0: {"orders": "id"}}
    assert old.offsets(1) == ["a text", KAFKA] and _first(old, 1), "the base is as it was"
    assert source_change("p", new.position(1), ["orders", "more", "numbers"]) is None
    assert source_change("p", None, ["orders"]) is None and known_sources(None) == frozenset()


def test_what_is_left_out_goes_on_there(tmp_path: Path) -> None:
    old = _location(tmp_path, ["it's/odd", "orders"], ["null", json.dumps(KAFKA)])
    record_ids(old, 1, {1: {"orders": "id"}})
    less = _changed(old, ["it's/odd"], "2-1")
    assert less.offsets(1) == [None] and recorded_ids(less) == {}
    assert known_sources(less.position(1)) == {"it's/odd", "orders"}
    again = _changed(less, ["orders", "it's/odd"], "3-1")
    assert again.offsets(1) == [KAFKA, None] and recorded_ids(again) == {0: {"orders": "id"}}
    assert _first(again, 0) == KAFKA, "which also holds where state is dropped meanwhile"
    assert not filesystem(again.uri).names(f"{again.uri}/airflow_ft_left")


@pytest.mark.parametrize("offset, is_refused", [('{"at":4}', True), ("-", False)])
def test_only_a_position_needs_the_former_kind(tmp_path: Path, offset: str, is_refused: bool) -> None:
    location = _location(tmp_path, ["numbers"], [offset])
    keep(location.uri, KINDS_FILE, {"numbers": {"kind": "files"}})
    request: Any = SimpleNamespace(pipeline="p", base=location.position(1), sources={"numbers": ADDED})
    with raises(ConfigurationError, "sources_changed", source="numbers") if is_refused else nullcontext():
        refuse_other_kinds(request, ["numbers"])


def test_a_custom_source_of_another_class_is_refused(tmp_path: Path) -> None:
    def request(data_source: str, path: str) -> Any:
        source = CustomSource(data_source=data_source, options={"path": path}, replayable=True)
        return SimpleNamespace(pipeline="p", base=base, sources={"lines": source.to_json()})

    location = _location(tmp_path, ["lines"], ['{"at":4}'])
    base = location.position(1)
    refuse_other_kinds(request("jobs:Lines", "/a"), ["lines"])  # of a release that kept no kinds
    assert not are_noted(request("jobs:Lines", "/a"), ["lines"]), "so they go into a copy"
    keep_kinds(location, request("jobs:Lines", "/a"), ["lines"])
    assert are_noted(request("jobs:Lines", "/a"), ["lines"])
    refuse_other_kinds(request("jobs:Lines", "/a"), ["lines"])
    refuse_other_kinds(request("jobs:Lines", "/b"), ["lines"])
    with raises(ConfigurationError, "sources_changed", source="lines"):
        refuse_other_kinds(request("jobs:Others", "/a"), ["lines"])


def test_a_left_out_source_outlives_runs_at_most_once(tmp_path: Path) -> None:
    """They continue nothing, and their mode refuses files. All files came twice when they were used again."""
    old = _location(tmp_path, ["numbers", "orders"], ['{"logOffset":0}', json.dumps(KAFKA)])
    log = local_path(old.uri) / "sources/0/0"
    log.parent.mkdir()
    log.write_text('v1\n{"path":"file:///in/a","timestamp":1,"batchId":0}')
    keep(old.uri, PATHS_FILE, {"numbers": "/in"})
    keep(old.uri, KINDS_FILE, {"numbers": {"kind": "files"}})
    for attempt in ("2-1", "3-1"):
        fresh = _location(tmp_path, ["orders"], ['{"orders":{"0":90}}'], attempt=attempt)
        keep_left_out(old.position(1), fresh)
        assert known_sources(fresh.position(1)) == {"numbers", "orders"} and note(fresh.uri, PATHS_FILE)
        assert note(fresh.uri, KINDS_FILE) == {"numbers": {"kind": "files"}}
        old = fresh
    again = _changed(old, ["numbers", "orders"], "4-1")
    assert again.offsets(1) == [{"logOffset": 0}, {"orders": {"0": 90}}]
    assert [each["path"] for each in all_entries(filesystem(again.uri), again.uri, "0", 0)] == ["file:///in/a"]


def test_a_source_with_no_start_option_needs_its_state_to_return(tmp_path: Path) -> None:
    old = _location(tmp_path, ["own", "orders"], ['{"at":4}', json.dumps(KAFKA)])
    less = _changed(old, ["orders"], "2-1")
    assert _changed(less, ["own", "orders"], "3-1").offsets(1) == [{"at": 4}, KAFKA]
    dropped = SparkLocation(less.root, "p", (tmp_path / "p/spark/3-0").as_uri(), -1)
    write_source_positions(filesystem(less.uri), less, dropped)
    with raises(ConfigurationError, "source_position_unsupported", source="own", offset={"at": 4}):
        _changed(dropped, ["own", "orders"], "4-1")
    assert _changed(dropped, ["more", "orders"], "4-2").offsets(-1) == [None, KAFKA]


@pytest.mark.parametrize(
    ("before", "now"), [(["a", "b"], ["a", "source-1"]), (["a", "source-1"], ["a"]), (["a", "b"], ["a", "a"])]
)
def test_no_guess(tmp_path: Path, before: list[str], now: list[str]) -> None:
    old = _location(tmp_path, before, ["1", "2"])
    with raises(ConfigurationError, "sources_changed", before=before, after=now):
        source_change("p", SparkPosition(old.uri, 1), now)


def test_a_copy_is_of_the_life_of_what_it_was_copied_from(tmp_path: Path) -> None:
    """By that an added source begins anew after everything was read anew, whoever of before wakes up late."""
    old = _location(tmp_path, ["orders"], [json.dumps(KAFKA)])
    late = _changed(old, ["refunds", "orders"], "2-1")
    remember_incarnation(old, "p/3-0")
    own = _changed(old, ["refunds", "orders"], "4-1")
    dropped = replace(own, uri=f"{own.uri}-0", batch=-1)
    write_source_positions(filesystem(own.uri), old, dropped)
    assert incarnation_in(own.uri) == incarnation_in(dropped.uri) == "p/3-0" and not incarnation_in(late.uri)


def test_spark_counts_the_lines_of_the_micro_batch_before_too(tmp_path: Path) -> None:
    old = _location(tmp_path, ["a"], ["7"], places=[0, 0])
    set_places(old, [0])
    assert [(local_path(old.uri) / f"offsets/{n}").read_text() for n in (0, 1)] == ["v1\n{}\n7"] * 2
