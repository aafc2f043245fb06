"""A changed job and the state of an earlier one: which operators are the same, and what becomes of their files."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from airflow_ft.jobs.uids import Identity
from airflow_ft.protocol.errors import ConfigurationError, StageError, StateMeaningError, TerminalError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.state.evolution import Evolution, carry_out, evolution, is_known, note_restored
from airflow_ft.spark.state.location_files import keep
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.spark.state.meaning import MEANING_FILE, Memory, meaning_of, remember_meaning, warn_of_later_spark
from airflow_ft.spark.state.operators import identities, remember
from airflow_ft.wal.local import local_path
from tests.raising import raises

PIPELINE = "p"
COUNT, DISTINCT, JOIN = "stateStoreSave", "dedupe", "symmetricHashJoin"
BATCH = 7


def _location(root: Path, *operators: str, plan: list[Identity] | None = None, format: str = "v1") -> SparkLocation:
    """What Spark leaves after batch 7 of a job with these operators, each with a file that tells of it."""
    folder = root / PIPELINE / "spark" / "1-1"
    for number, kind in enumerate(operators):
        state = folder / "state" / str(number)
        (state / "_metadata").mkdir(parents=True)
        metadata = {"operatorInfo": {"operatorId": number, "operatorName": kind}, "stateStoreInfo": []}
        (state / "_metadata" / "metadata").write_text(f"v1\n{json.dumps(metadata)}")
        (state / "_metadata" / ".metadata.crc").write_text("crc")
        (state / "0").mkdir()
        (state / "0" / f"{BATCH + 1}.zip").write_text(f"{kind} {number}")
    for log in ("offsets", "commits"):
        (folder / log).mkdir(parents=True)
    ids = {"stateUniqueIds": {str(n): [[kind]] for n, kind in enumerate(operators)}} if format == "v2" else {}
    (folder / "commits" / str(BATCH)).write_text(f"{format}\n{json.dumps({'nextBatchWatermarkMs': 5, **ids})}")
    (folder / "commits" / f".{BATCH}.crc").write_text("crc")
    (folder / "offsets" / str(BATCH)).write_text('v1\n{"conf":{}}\n{"logOffset":7}')
    location = SparkLocation(str(root), PIPELINE, folder.as_uri(), BATCH)
    if plan is not None:
        remember(location, plan)
    return location


def _evolution(location: SparkLocation, *plan: Identity) -> Evolution | None:
    return evolution(PIPELINE, SparkPosition(location.uri, location.batch), plan)


def _named(*operators: tuple[str, str]) -> list[Identity]:
    return [Identity(kind, uid) for kind, uid in operators]


def _never(_: SparkLocation) -> None:
    raise AssertionError("nothing is born")


def test_the_same_job_changes_nothing(tmp_path: Path) -> None:
    plan = _named((COUNT, "a"), (DISTINCT, "b"), (DISTINCT, ""))
    location = _location(tmp_path, COUNT, DISTINCT, DISTINCT, plan=plan)
    assert identities(location) == tuple(plan)
    assert _evolution(location, *plan) is None
    assert _evolution(location, *_named((COUNT, "a"), (DISTINCT, "b"), (DISTINCT, "c"))) is None, "named later"
    assert evolution(PIPELINE, None, plan) is None
    assert evolution(PIPELINE, SparkPosition(location.uri, -1), []) is None, "its state was dropped"


def test_operators_are_matched_by_uid_or_else_by_a_unique_kind(tmp_path: Path) -> None:
    location = _location(
        tmp_path,
        COUNT,
        DISTINCT,
        DISTINCT,
        JOIN,
        plan=_named((COUNT, "a"), (DISTINCT, "b"), (DISTINCT, "c"), (JOIN, "")),
    )
    moved = _named((JOIN, ""), (DISTINCT, "c"), (DISTINCT, "new"), (DISTINCT, "b"), (COUNT, "a"))
    assert _evolution(location, *moved) == Evolution({0: 4, 1: 3, 2: 1, 3: 0}, (), (2,))
    assert _evolution(location, *_named((JOIN, "now named"), *((e.kind, e.uid) for e in moved[1:]))) is not None


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ([(DISTINCT, ""), (DISTINCT, "")], [(DISTINCT, "")]),
        ([(DISTINCT, "")], [(DISTINCT, ""), (DISTINCT, "x")]),
        ([(DISTINCT, ""), (DISTINCT, ""), (COUNT, "")], [(COUNT, ""), (DISTINCT, ""), (DISTINCT, "")]),
    ],
    ids=["which is left out", "which is new", "which was moved"],
)
def test_what_would_be_a_guess_is_refused(
    tmp_path: Path, before: list[tuple[str, str]], now: list[tuple[str, str]]
) -> None:
    location = _location(tmp_path, *(kind for kind, _ in before), plan=_named(*before))
    note_restored(location, True)
    with raises(ConfigurationError, "operators_unmatched", kind="dropDuplicates") as caught:
        _evolution(location, *_named(*now))
    assert caught.error is not None and "airflow_ft.jobs.uids.uid" in caught.error.remedy


def test_another_kind_under_the_same_uid_is_refused(tmp_path: Path) -> None:
    location = _location(tmp_path, COUNT, plan=_named((COUNT, "a")))
    with raises(ConfigurationError, "operators_unmatched", uid="a", before="an aggregation", after="dropDuplicates"):
        _evolution(location, *_named((DISTINCT, "a")))


def test_state_is_dropped_only_if_allowed_at_this_very_batch(tmp_path: Path) -> None:
    location = _location(tmp_path, COUNT, DISTINCT, plan=_named((COUNT, "a"), (DISTINCT, "b")))
    for allowed, batch in ((None, BATCH), (False, BATCH), (True, BATCH - 1)):
        if allowed is not None:
            note_restored(SparkLocation(location.root, PIPELINE, location.uri, batch), allowed)
        with raises(ConfigurationError, "operator_missing", operators=["a"]):
            _evolution(location, *_named((DISTINCT, "b")))
    note_restored(location, True)
    assert _evolution(location, *_named((DISTINCT, "b"))) == Evolution({1: 0}, (0,), ())
    assert _evolution(location) == Evolution({}, (0, 1), ())


def test_a_location_of_an_earlier_version_is_left_to_spark(tmp_path: Path) -> None:
    location = _location(tmp_path, COUNT, DISTINCT)
    assert _evolution(location, *_named((COUNT, ""))) is None
    remember(location, _named((COUNT, "")))  # as the plan said, while Spark has made two
    assert _evolution(location, *_named((COUNT, ""))) is None
    assert [each.kind for each in identities(location)] == [COUNT, DISTINCT]


def _memory(*operators: Mapping[str, list[list[str]]], spark: str = "4.2.0") -> Memory:
    return Memory(spark, operators)


SUM = {"keys": [["orders.k"]], "functions": [["sum(orders.x)"]]}
MAX = {"keys": [["orders.k"]], "functions": [["max(orders.x)"]]}
IDS = {"keys": [["orders.id"]]}


def test_changed_state_is_refused_unless_the_restore_allowed_it(tmp_path: Path) -> None:
    plan = _named((COUNT, "totals"), (DISTINCT, ""))
    location = _location(tmp_path, COUNT, DISTINCT, plan=plan)
    base = SparkPosition(location.uri, location.batch)
    remember_meaning(location, _memory(SUM, IDS))
    assert is_known(base, plan, _memory(SUM, IDS)) and not is_known(base, plan, _memory(MAX, IDS))
    assert not is_known(base, [plan[0], Identity(DISTINCT, "named")], _memory(SUM, IDS))
    assert evolution(PIPELINE, base, plan, _memory(SUM, IDS)) is None
    with pytest.raises(StateMeaningError) as caught:
        evolution(PIPELINE, base, plan, _memory(MAX, {"keys": [["orders.x"]]}))
    assert isinstance(caught.value, TerminalError) and caught.value.pipeline == PIPELINE
    for part in (
        "operator 'totals' (an aggregation): functions were sum(orders.x), and are max(orders.x)",
        "operator 1, dropDuplicates: keys were orders.id, and are orders.x",
    ):
        assert part in caught.value.what
    assert "--allow-changed-state" in caught.value.remedy
    for batch, allowed in ((BATCH - 1, True), (BATCH, False)):
        note_restored(SparkLocation("", PIPELINE, location.uri, batch), True, allow_changed_state=allowed)
        with pytest.raises(StateMeaningError):
            evolution(PIPELINE, base, plan, _memory(MAX, IDS))
    note_restored(location, False, allow_changed_state=True)
    assert evolution(PIPELINE, base, plan, _memory(MAX, IDS)) is None


def test_operators_that_have_moved_are_compared_with_themselves(tmp_path: Path) -> None:
    location = _location(tmp_path, COUNT, DISTINCT, plan=_named((COUNT, "a"), (DISTINCT, "b")))
    base = SparkPosition(location.uri, location.batch)
    remember_meaning(location, _memory(SUM, IDS))
    moved = _named((DISTINCT, "b"), (DISTINCT, "new"), (COUNT, "a"))
    others = {"keys": [["orders.other"]]}
    assert evolution(PIPELINE, base, moved, _memory(IDS, others, SUM)) == Evolution({0: 2, 1: 0}, (), (1,))
    with raises(StateMeaningError, "state_meaning_changed") as refused:
        evolution(PIPELINE, base, moved, _memory(IDS, others, MAX))
    assert refused.error is not None
    [changed] = refused.error.fields["changed"]
    assert "'a'" in changed and "sum" in changed and "max" in changed
    remember(location, _named((COUNT, "a")))  # Spark has made two operators of it
    remember_meaning(location, _memory(SUM))
    with raises(StateMeaningError, "state_meaning_changed", changed=[changed]):
        evolution(PIPELINE, base, _named((COUNT, "a")), _memory(MAX))


def test_what_nobody_knows_is_not_compared(tmp_path: Path) -> None:
    plan = _named((COUNT, "a"))
    location = _location(tmp_path, COUNT, plan=plan)
    base = SparkPosition(location.uri, location.batch)
    assert evolution(PIPELINE, base, plan, _memory(SUM)) is None, "none was recorded"
    remember_meaning(location, _memory(SUM))
    assert evolution(PIPELINE, base, plan, None) is None, "a plan that cannot be read"
    assert evolution(PIPELINE, base, plan, _memory(MAX, spark="4.3.0")) is None, "another Spark, another plan"
    with pytest.raises(StateMeaningError):
        evolution(PIPELINE, base, plan, _memory(MAX, spark="4.2.1"))
    keep(location.uri, MEANING_FILE, {"format": 99, "spark": "4.2.0", "operators": [MAX]})
    assert evolution(PIPELINE, base, plan, _memory(SUM)) is None, "another format"
    remember_meaning(location, None)
    assert meaning_of(location) is None


@pytest.mark.parametrize(
    ("ours", "warned"), [("4.1.4", True), ("4.2.0-SNAPSHOT", False), ("4.2.1", False), ("4.10.0", False), ("", False)]
)
def test_state_of_a_later_spark_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ours: str, warned: bool
) -> None:
    location = _location(tmp_path, COUNT)
    warn_of_later_spark(location, "4.1.0")
    remember_meaning(location, _memory(SUM, spark="4.2.0"))
    warn_of_later_spark(location, ours)
    assert ("Spark 4.2.0 wrote" in caplog.text) is warned
    caplog.clear()
    keep(location.uri, MEANING_FILE, {"format": 99})
    warn_of_later_spark(location, ours)
    assert not caplog.text, "another format"


@pytest.mark.parametrize("format", ["v1", "v2"])
def test_folders_numbers_and_ids_follow_the_operators(tmp_path: Path, format: str) -> None:
    plan = _named((COUNT, "a"), (DISTINCT, "b"), (JOIN, "c"))
    location = _location(tmp_path, COUNT, DISTINCT, JOIN, plan=plan, format=format)
    note_restored(location, True)
    changed = _named((JOIN, "c"), (COUNT, "a"))
    step = _evolution(location, *changed)
    assert step == Evolution({0: 1, 2: 0}, (1,), ())
    carry_out(step, location, changed, _never)
    folder = tmp_path / PIPELINE / "spark" / "1-1"
    assert sorted(path.name for path in (folder / "state").iterdir()) == ["0", "1"]
    assert [(folder / "state" / n / "0" / "8.zip").read_text() for n in "01"] == [f"{JOIN} 2", f"{COUNT} 0"]
    for number in (0, 1):
        metadata = folder / "state" / str(number) / "_metadata"
        assert json.loads((metadata / "metadata").read_text().split("\n")[1])["operatorInfo"]["operatorId"] == number
        assert not (metadata / ".metadata.crc").exists(), "it would not fit"
    version, content = (folder / "commits" / str(BATCH)).read_text().split("\n")
    assert (version, json.loads(content)["nextBatchWatermarkMs"]) == (format, 5)
    assert json.loads(content).get("stateUniqueIds") == ({"0": [[JOIN]], "1": [[COUNT]]} if format == "v2" else None)
    assert (folder / "commits" / f".{BATCH}.crc").exists() == (format == "v1")
    assert identities(location) == tuple(changed) and _evolution(location, *changed) is None
    assert {path.name for path in folder.iterdir()} == {
        "state",
        "offsets",
        "commits",
        "airflow_ft_uids.json",
        "airflow_ft_restored.json",
    }


def test_a_birth_that_makes_nothing_or_something_else_is_told(tmp_path: Path) -> None:
    location = _location(tmp_path, COUNT, plan=_named((COUNT, "a")))
    folder = tmp_path / PIPELINE / "spark" / "1-1"
    (folder / "metadata").write_text('{"id":"x"}')
    (folder / "sources" / "0").mkdir(parents=True)
    (folder / "sources" / "0" / "0").write_text('\0v1\n{"t":{"0":0}}')
    (folder / "offsets" / str(BATCH)).write_text('v1\n{"conf":{}}\n{"t":{"0":5}}')
    changed = _named((COUNT, "a"), (DISTINCT, "b"))
    step = _evolution(location, *changed)
    assert step == Evolution({0: 0}, (), (1,))
    with raises(StageError, "state_not_rewritten", pipeline=PIPELINE):
        carry_out(step, location, changed, lambda _: None)

    def bear(born: SparkLocation) -> None:
        """As if the plan's operator were another one for Spark."""
        where = local_path(born.uri)
        assert (where / "offsets" / "0").read_text().endswith('\n{"t":{"0":5}}'), "it has nothing to read"
        assert (where / "sources" / "0" / "0").read_text().endswith('{"t":{"0":5}}')
        _location(where, COUNT, JOIN, format="v1")
        shutil.copytree(where / PIPELINE / "spark" / "1-1" / "state", where / "state")
        (where / "commits").mkdir()
        (where / "commits" / "0").write_text("v1\n{}")

    shutil.rmtree(f"{folder}-born")
    with raises(StageError, "state_not_rewritten") as caught:
        carry_out(step, location, changed, bear)
    assert caught.error is not None
    assert "dedupe" in caught.error.fields["planned"] and "symmetricHashJoin" in caught.error.fields["found"]
