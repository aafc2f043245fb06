"""Tables that other writers have made: features of the protocol, marks of Spark, and the errors about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema

from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import DeclinedError, UnfitTargetError
from airflow_ft.sinks import doctor
from airflow_ft.sinks.base.requirements import lacks
from airflow_ft.sinks.delta import requirements
from airflow_ft.sinks.delta.columns import Column, of_table, too_long
from airflow_ft.sinks.delta.features import SUPPORTED
from airflow_ft.testing.world import SINK, World
from tests.raising import raises
from tests.sinks.delta.world import table_of, world_of

BOTH = frozenset(
    ("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint",
     "vacuumProtocolCheck", "variantType", "variantShredding-preview", "catalogManaged", "catalogOwned-preview",
     "featureToCome")
)  # fmt: skip
UNSUPPORTED = (
    "identityColumns", "rowTracking", "typeWidening", "typeWidening-preview", "domainMetadata", "icebergCompatV1",
    "icebergCompatV2", "icebergCompatV3", "clustering", "vacuumProtocolCheck", "variantType",
    "variantShredding-preview", "allowColumnDefaults", "inCommitTimestamp", "inCommitTimestamp-preview",
    "catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview", "collations-preview",
    "checkpointProtection", "materializePartitionColumns", "featureToCome", "writerFeatureToCome",
)  # fmt: skip


def protocol_of(feature: str) -> dict[str, Any]:
    """One that has this feature alone."""
    if feature not in BOTH:
        return {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature]}
    return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [feature], "writerFeatures": [feature]}


def made(world: World, protocol: dict[str, Any], columns: list[dict[str, Any]] | None = None) -> None:
    """An empty table for the world's rows, as another writer might have made it."""
    log = table_of(world).path / "_delta_log"
    log.mkdir(parents=True)
    fields = columns or [field("id", "long"), field("text", "string")]
    metadata = {
        "id": "8a1c5c54-6f0c-4b7b-9a0e-0f2c1f1d7f11", "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}), "partitionColumns": [], "configuration": {},
        "createdTime": 0,
    }  # fmt: skip
    lines = [json.dumps({"protocol": protocol}), json.dumps({"metaData": metadata})]
    (log / f"{0:020}.json").write_text("\n".join(lines) + "\n")


def logged(*fields: dict[str, Any]) -> pa.Schema:
    """As delta-rs reads such columns in a log."""
    return pa.schema(Schema.from_json(json.dumps({"type": "struct", "fields": fields})))


def field(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def upgrade(world: World, protocol: dict[str, Any]) -> None:
    """Commit as another writer."""
    log = table_of(world).path / "_delta_log"
    version = max(int(each.stem) for each in log.glob("*.json")) + 1
    (log / f"{version:020}.json").write_text(json.dumps({"protocol": protocol}) + "\n")


def versions(world: World) -> int:
    return len(list((table_of(world).path / "_delta_log").glob("*.json")))


@pytest.mark.parametrize("feature", UNSUPPORTED)
def test_a_feature_that_is_not_supported_is_named_everywhere(tmp_path: Path, feature: str) -> None:
    world = world_of(tmp_path)
    made(world, protocol_of(feature))
    name = "catalogManaged" if feature.startswith("catalog") else feature
    plan, connection = world.participant_plan(), table_of(world).connection
    with raises(UnfitTargetError, "table_unsupported", feature=name) as caught:
        world.prepare(world.plan())
    assert caught.error is not None and caught.error.remedy and versions(world) == 1
    [schema_problem] = requirements.schema_problems(plan, connection, {SINK: world.table(0, 1).schema})
    assert isinstance(schema_problem, UnfitTargetError) and name in schema_problem.what
    [check] = doctor.examine("orders", plan, connection, [])
    assert check.verdict is Verdict.PROBLEM and name in check.text
    found = lacks(requirements.required("orders", plan, connection))
    assert [name in each.what for each in found] == [True]


@pytest.mark.parametrize("feature", sorted(SUPPORTED))
def test_rows_come_beside_a_feature_that_nothing_makes_use_of(tmp_path: Path, feature: str) -> None:
    world = world_of(tmp_path)
    made(world, protocol_of(feature))
    assert not lacks(requirements.required("orders", world.participant_plan(), table_of(world).connection))
    world.deliver(world.plan())
    commits = (table_of(world).path / "_delta_log").glob("*.json")
    actions = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
    [stats] = [
        json.loads(each["add"]["stats"]) for each in actions if "add" in each
    ]  # not all of them are readable here
    assert stats["numRecords"] == len(world.ids_of(1))


@pytest.mark.parametrize(("reader", "writer", "fits"), [(1, 1, True), (1, 4, True), (2, 5, True), (2, 6, False)])
def test_a_version_without_a_list_has_the_features_of_its_time(
    tmp_path: Path, reader: int, writer: int, fits: bool
) -> None:
    world = world_of(tmp_path)
    made(world, {"minReaderVersion": reader, "minWriterVersion": writer})
    if fits:
        world.deliver(world.plan())
        return
    with raises(UnfitTargetError, "table_unsupported", feature="identityColumns"):
        world.prepare(world.plan())


def test_a_version_of_the_future_is_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    made(world, {"minReaderVersion": 4, "minWriterVersion": 8, "readerFeatures": [], "writerFeatures": []})
    with raises(UnfitTargetError, "table_unsupported"):
        world.prepare(world.plan())


@pytest.mark.parametrize("feature", ["domainMetadata", "rowTracking"])
def test_a_feature_that_came_since_the_vote_keeps_rows_out(tmp_path: Path, feature: str) -> None:
    world = world_of(tmp_path)
    plan = world.plan()
    vote = world.prepare(plan)
    upgrade(world, protocol_of(feature))
    with raises(UnfitTargetError, "table_unsupported", feature=feature):
        world.commit(plan, vote)
    with raises(UnfitTargetError, "table_unsupported", feature=feature):
        world.participant(plan).abort(plan, world.fence(1, world.attempt()), {})
    upgrade(world, {"minReaderVersion": 1, "minWriterVersion": 2})
    world.commit(plan, vote)
    assert world.target.ids() == world.ids_of(1)


MARK = "__CHAR_VARCHAR_TYPE_STRING"


@pytest.mark.parametrize("decides", [True, False])
@pytest.mark.parametrize(("mark", "kept"), [("varchar(3)", [1, 2, 4, 5]), ("char(3)", [1, 2, 4])])
def test_texts_that_are_too_long_for_spark_s_type_are_refused(
    tmp_path: Path, mark: str, kept: list[int], decides: bool
) -> None:
    """To the log both are texts of any length: only Spark's own writer and reader know the mark."""
    world = world_of(tmp_path)
    world.commit_point = decides
    made(
        world,
        {"minReaderVersion": 1, "minWriterVersion": 2},
        [field("id", "long"), field("T", "string", **{MARK: mark})],
    )
    snowmen = 3 * "\N{SNOWMAN}"
    rows = pa.table({"id": [1, 2, 3, 4, 5], "t": ["abc", snowmen, "abcd", None, "a "]})
    plan = world.plan(rows)
    with raises(DeclinedError, "row_refused", sink=SINK) as caught:
        vote = world.prepare(plan)
        assert decides, "a later refusal is impossible"
        world.commit(plan, vote)
    assert caught.error is not None and all(each in caught.error.headline for each in ("row 3", "'T'", mark))
    assert world.target.ids() == []
    world.commit(plan := world.plan(rows), world.vote_without_prepare(plan), set_aside=True)
    assert world.target.ids() == kept


def test_marks_and_defaults_that_cannot_be_heeded_are_named() -> None:
    array = {"type": "array", "elementType": "string", "containsNull": True}
    inner = {"type": "struct", "fields": [field("x", "string", **{MARK: "char(3)"})]}
    kept = {"type": "struct", "fields": [field("x", "long", **{"delta.invariants": "{}"})]}
    [parts, default, widened, within, invariant, required, plain] = of_table(
        logged(
            field("a", array, **{MARK: "array<varchar(3)>"}),
            field("b", "string", CURRENT_DEFAULT="'x'"),
            field("c", "long", **{"delta.typeChanges": []}),
            field("e", {**array, "elementType": inner}),
            field("f", {"type": "map", "keyType": "string", "valueType": kept, "valueContainsNull": True}),
            field("g", {**array, "containsNull": False}),
            field("d", "string", **{MARK: "varchar(65535)"}),
        )
    )
    assert all(column.oddity for column in (parts, default, widened, within, invariant, required))
    assert (plain.oddity, plain.characters, plain.padded) == ("", 65535, False)


def test_the_length_of_a_text_is_counted_in_characters() -> None:
    column = Column("t", "string", True, characters=2)
    values = pa.array(["\N{SNOWMAN}\N{SNOWMAN}", "abc", None, "a ", ""], pa.large_string())
    assert list(too_long(column, values)) == [1]
