"""What was delivered after a savepoint, and stays: which micro-batches are computed once more, from which files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.state.catching_up import FOLDER, catch_up, has_read_all_of, is_planned, plan
from airflow_ft.spark.state.location_files import keep
from airflow_ft.spark.state.locations import SOURCES_FILE, SparkLocation, copy_location, set_places
from airflow_ft.spark.state.status import record_ids, recorded_ids
from tests.raising import raises

CONF = {"spark.sql.shuffle.partitions": "2"}


def _location(root: Path, attempt: str, batches: int, *, conf: Any = None) -> SparkLocation:
    """A location in which each micro-batch has read 10 records of Kafka and a file more."""
    folder = root / "p" / "spark" / attempt
    for log in ("offsets", "commits", "sources/0", "sources/1"):
        (folder / log).mkdir(parents=True)
    (folder / "sources" / "0" / "0").write_text('\0v1\n{"t":{"0":0}}')
    for batch in range(batches):
        metadata = {"batchWatermarkMs": 1000 * batch, "batchTimestampMs": batch, "conf": conf or CONF}
        lines = ["v1", json.dumps(metadata), f'{{"t":{{"0":{10 * batch + 10}}}}}', f'{{"logOffset":{batch}}}']
        (folder / "offsets" / str(batch)).write_text("\n".join(lines))
        (folder / "commits" / str(batch)).write_text("v1\n{}")
        entry = {"path": f"file:///in/{batch}", "timestamp": batch, "batchId": batch}
        (folder / "sources" / "1" / str(batch)).write_text(f"v1\n{json.dumps(entry)}")
    location = SparkLocation(str(root), "p", folder.as_uri(), batches - 1)
    record_ids(location, batches - 1, {0: {"t": f"id of {attempt}"}})
    return location


def _restored(root: Path, batch: int, conf: Any = None) -> SparkLocation:
    return _location(root / "savepoint", "1-1", batch + 1, conf=conf)


class _Spark:
    """Commits what is planned, and remembers it."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, dict[str, Any], list[str]]] = []

    def __call__(self, location: SparkLocation) -> None:
        folder = Path(location.uri.removeprefix("file://"))
        batch = max(int(path.name) for path in (folder / "offsets").iterdir())
        assert not (folder / "commits" / str(batch)).exists()
        _, metadata, *lines = (folder / "offsets" / str(batch)).read_text().split("\n")
        self.seen.append((batch, json.loads(metadata), lines))
        (folder / "commits" / str(batch)).write_text("v1\n{}")


def test_a_recomputed_micro_batch_keeps_offsets_and_watermark(tmp_path: Path) -> None:
    """Also when the savepoint was rescaled: it is a micro-batch further, and its settings count."""
    base = _location(tmp_path, "7-1", 5)
    (Path(base.uri.removeprefix("file://")) / "sources" / "1" / "5").write_text("of a batch that was never published")
    conf = {"spark.sql.shuffle.partitions": "4"}
    here = _restored(tmp_path, 3, conf)
    offsets = Path(here.uri.removeprefix("file://")) / "offsets"
    offsets.joinpath("3").write_text("\n".join(["v1", json.dumps({"conf": conf}), '{"t":{"0":20}}', '{"logOffset":1}']))
    here = SparkLocation(here.root, "p", here.uri, 3)
    for number in (2, 3):
        (offsets.parent / "sources" / "1" / str(number)).unlink()
    assert plan(here, base, 1) == 3
    assert (
        is_planned(SparkPosition(here.uri, 3)) and not is_planned(None) and not is_planned(SparkPosition(base.uri, 4))
    )

    copy = copy_location(here, (tmp_path / "p" / "spark" / "9-1").as_uri())  # as an attempt makes it
    spark = _Spark()
    caught_up = catch_up(copy, spark)
    assert [
        (batch, expected["batchWatermarkMs"], expected["conf"], lines) for batch, expected, lines in spark.seen
    ] == [(n + 2, 1000 * n, conf, [f'{{"t":{{"0":{10 * n + 10}}}}}', f'{{"logOffset":{n}}}']) for n in (2, 3, 4)]
    assert caught_up.batch == 6 and caught_up.offsets(6) == base.offsets(4)
    assert recorded_ids(caught_up) == {0: {"t": "id of 7-1"}}
    folder = Path(copy.uri.removeprefix("file://"))
    assert sorted(path.name for path in (folder / "sources" / "1").iterdir()) == ["0", "1", "2", "3", "4"]
    assert not (folder / FOLDER).exists() and not is_planned(caught_up.position(6))
    assert is_planned(SparkPosition(here.uri, 3)), "whoever dies begins anew"
    assert catch_up(caught_up, spark) == caught_up and len(spark.seen) == 3


def test_a_source_that_is_used_twice_has_two_lines_again(tmp_path: Path) -> None:
    base, here = _location(tmp_path, "7-1", 3), _restored(tmp_path, 0)
    set_places(here, [0, 1, 0])
    assert plan(here, base, 0) == 2
    spark = _Spark()
    catch_up(here, spark)
    assert [lines for _, _, lines in spark.seen] == [
        [f'{{"t":{{"0":{n}}}}}', f'{{"logOffset":{m}}}', f'{{"t":{{"0":{n}}}}}'] for n, m in ((20, 1), (30, 2))
    ]


def test_a_job_that_uses_a_source_more_often_has_all_offsets(tmp_path: Path) -> None:
    """It is changed when the savepoint is restored, and what was read is planned before that."""
    base, here = _location(tmp_path, "7-1", 3), _restored(tmp_path, 0)
    assert plan(here, base, 0) == 2
    set_places(here, [0, 1, 0])
    spark = _Spark()
    catch_up(here, spark)
    assert [lines for _, _, lines in spark.seen] == [
        [f'{{"t":{{"0":{n}}}}}', f'{{"logOffset":{m}}}', f'{{"t":{{"0":{n}}}}}'] for n, m in ((20, 1), (30, 2))
    ]


def test_what_was_planned_and_not_computed_is_planned_again(tmp_path: Path) -> None:
    """The savepoint is restored once more, before any run has caught up; also another one of that history."""
    base, restored = _location(tmp_path, "7-1", 5), _restored(tmp_path, 1)
    assert plan(restored, base, 1) == 3
    for number, since in ((1, 1), (3, 3)):
        here = _location(tmp_path / f"again-{number}", "1-1", number + 1)
        assert plan(here, restored, since) == 4 - since
        spark = _Spark()
        caught_up = catch_up(here, spark)
        assert [(batch, expected["batchWatermarkMs"], lines) for batch, expected, lines in spark.seen] == [
            (n, 1000 * n, [f'{{"t":{{"0":{10 * n + 10}}}}}', f'{{"logOffset":{n}}}']) for n in range(since + 1, 5)
        ]
        assert recorded_ids(caught_up) == {0: {"t": "id of 7-1"}}
        read = Path(here.uri.removeprefix("file://")) / "sources" / "1"
        assert sorted(path.name for path in read.iterdir()) == ["0", "1", "2", "3", "4"]
    with raises(ConfigurationError, "rebuild_impossible"):
        plan(_restored(tmp_path / "later", 4), restored, 5)


def test_locations_are_compared_by_offsets_and_names_of_files(tmp_path: Path) -> None:
    """Not by numbers: a rescaling adds a micro-batch, and the log of read files may have begun anew."""
    older, newer = _restored(tmp_path / "older", 1), _restored(tmp_path / "newer", 3)
    assert has_read_all_of(newer, older) and not has_read_all_of(older, newer) and has_read_all_of(older, older)

    rescaled = _restored(tmp_path / "rescaled", 4)
    lines = (Path(older.uri.removeprefix("file://")) / "offsets" / "1").read_text()
    (Path(rescaled.uri.removeprefix("file://")) / "offsets" / "4").write_text(lines)
    assert has_read_all_of(older, rescaled) and not has_read_all_of(rescaled, newer)

    recomputed = _restored(tmp_path / "anew", 3)
    entries = [json.dumps({"path": f"file:///in/{n}", "timestamp": n, "batchId": 2**62}) for n in range(3)]
    (Path(recomputed.uri.removeprefix("file://")) / "sources" / "1" / "0").write_text("\n".join(["v1", *entries]))
    (Path(recomputed.uri.removeprefix("file://")) / "offsets" / "3").write_text(
        'v1\n{}\n{"t":{"0":40}}\n{"logOffset":0}'
    )
    assert has_read_all_of(recomputed, older) and not has_read_all_of(recomputed, newer)
    assert not has_read_all_of(older, recomputed), "though its id is larger"
    (Path(recomputed.uri.removeprefix("file://")) / "sources" / "1" / "0").unlink()
    assert not has_read_all_of(recomputed, older), "what is not known is not taken for read"

    waiting = _restored(tmp_path / "waiting", 1)
    plan(waiting, _location(tmp_path / "base", "7-1", 4), 1)
    assert has_read_all_of(waiting, newer) and has_read_all_of(newer, waiting)

    for text in ('{"t":{"0":40,"1":5}}\n{"logOffset":3}', '{"t":{"0":40}}\nposition 7', '{"t":{"0":40}}'):
        (Path(recomputed.uri.removeprefix("file://")) / "offsets" / "3").write_text(f"v1\n{{}}\n{text}")
        assert not has_read_all_of(newer, recomputed), text


def test_sources_that_were_changed_since_are_refused(tmp_path: Path) -> None:
    """Lines of offsets go by their order: of which source one is cannot be told any more."""
    base, here = _location(tmp_path, "7-1", 5), _restored(tmp_path, 1)
    for location, names in ((base, ["b", "a"]), (here, ["a", "b"])):
        keep(location.uri, SOURCES_FILE, names)
    with raises(ConfigurationError, "rebuild_impossible"):
        plan(here, base, 1)
    assert not has_read_all_of(base, here)
    keep(base.uri, SOURCES_FILE, ["a", "b"])
    set_places(replace(base, batch=2), [0, 1, 0])
    with raises(ConfigurationError, "rebuild_impossible"):
        plan(here, base, 1)
    later = _restored(tmp_path / "later", 3)
    keep(later.uri, SOURCES_FILE, ["a", "b"])
    assert plan(later, base, 3) == 1


def test_another_history_and_a_record_that_is_gone_are_refused(tmp_path: Path) -> None:
    base, here = _location(tmp_path, "7-1", 5), _restored(tmp_path, 1)
    with raises(ConfigurationError, "rebuild_impossible"):
        plan(here, base, 2)
    with raises(ConfigurationError, "rebuild_impossible"):
        plan(here, base, 17)
    (Path(base.uri.removeprefix("file://")) / "offsets" / "3").unlink()
    with raises(ConfigurationError, "rebuild_impossible") as caught:
        plan(here, base, 1)
    assert caught.error is not None and "micro-batch 3" in caught.error.headline
    assert "--later write-again" in caught.error.remedy


def test_other_files_at_the_same_offsets_are_refused(tmp_path: Path) -> None:
    """A full refresh, or rows that are written again: the source counts its batches as before, with other files."""
    base, here = _location(tmp_path, "7-1", 5), _restored(tmp_path, 1)
    log = Path(base.uri.removeprefix("file://")) / "sources" / "1"
    entries = [json.loads((log / str(n)).read_text().partition("\n")[2]) for n in range(4)]

    def compacted(*paths: str) -> None:
        lines = [json.dumps({**each, "path": path}) for each, path in zip(entries, paths, strict=True)]
        (log / "3.compact").write_text("\n".join(["v1", *lines]))

    for number in range(4):
        (log / str(number)).unlink()
    with raises(ConfigurationError, "rebuild_impossible") as caught:
        plan(here, base, 1)
    assert caught.error is not None and "was removed" in caught.error.headline
    compacted("file:///in/0", "file:///in/2", "file:///in/1", "file:///in/3")
    with raises(ConfigurationError, "rebuild_impossible") as caught:
        plan(here, base, 1)
    assert caught.error is not None and "read its files again" in caught.error.headline
    compacted("file:///in/1", "file:///in/0", "file:///in/2", "file:///in/3")
    assert plan(here, base, 1) == 3


def test_a_savepoint_taken_before_the_state_caught_up_is_refused(tmp_path: Path) -> None:
    """A micro-batch that Spark did not compute again is an error too."""
    base, here = _location(tmp_path, "7-1", 5), _restored(tmp_path, 1)
    plan(here, base, 1)
    with raises(ConfigurationError, "rebuild_impossible"):
        plan(here, base, 1)
    with raises(StageError, "state_not_rewritten", batch=2):
        catch_up(here, lambda _: None)
