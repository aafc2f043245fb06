"""What has changed of a schema of operator state, in words."""

import json
import shutil
from pathlib import Path

import pytest

from airflow_ft.protocol.errors import JobError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.driver.failures import as_error
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.spark.state.meaning import Memory, remember_meaning
from airflow_ft.spark.state.operators import operators
from airflow_ft.spark.state.schemas import Fields, differences, lost, of_json, refuse_lost, states
from airflow_ft.spark.state.settings import ENCODING
from tests.raising import raises


def _text(text: str) -> bytes:
    return len(text).to_bytes(2) + text.encode()


def _long(text: str) -> bytes:
    """In two parts, as a text above 64 KiB lies there."""
    return (2).to_bytes(4) + _text(text[:10]) + _text(text[10:])


def _schema(*fields: tuple[str, object]) -> str:
    described = [{"name": name, "type": type, "nullable": True, "metadata": {}} for name, type in fields]
    return json.dumps({"type": "struct", "fields": described})


def _location(folder: Path, operator: str, batches: list[list[tuple[str, object]]], encoding: str = "avro") -> str:
    """A location in which each batch has planned another schema of the variable `seen`, or store `default`."""
    state, conf = folder / "state" / "0", json.dumps({"conf": {ENCODING: encoding}})
    keyed = operator.startswith("transformWithState")
    for batch, fields in enumerate(batches):
        for log, text in (("offsets", f"v1\n{conf}\n{{}}"), ("commits", "v1\n{}")):
            (folder / log).mkdir(parents=True, exist_ok=True)
            (folder / log / str(batch)).write_text(text)
        key, value = _schema(("k", "string")), _schema(*fields)
        store = {"storeName": "default", "numPartitions": 1}
        if keyed:
            schemas = state / "_stateSchema" / "default"
            schemas.mkdir(parents=True, exist_ok=True)
            data = _text("v3") + (1).to_bytes(4) + _text("seen") + bytes(2) + _long(key) + bytes(2) + _long(value)
            (schemas / f"{batch}_id").write_bytes(data + _long('{"a":"an encoder"}') + _long("{          }"))
            elsewhere = "file:/elsewhere/state/0/_stateSchema/default"
            store["stateSchemaFilePaths"] = [f"{elsewhere}/{each}_id" for each in range(batch + 1)]
            file = state / "_metadata" / "v2" / str(batch)
        else:
            (state / "0" / "_metadata").mkdir(parents=True, exist_ok=True)
            (state / "0" / "_metadata" / "schema").write_bytes(_text("v2") + _long(key) + _long(value))
            file = state / "_metadata" / "metadata"
        file.parent.mkdir(parents=True, exist_ok=True)
        info = {"operatorInfo": {"operatorId": 0, "operatorName": operator}, "stateStoreInfo": [store]}
        file.write_text(f"v2\n{json.dumps(info)}")
    return folder.as_uri()


def _fields(n: str, q: str, tags: str) -> Fields:
    array = {"type": "array", "elementType": "string", "containsNull": True}
    structure = {"type": "struct", "fields": [{"name": q, "type": "short"}]}
    of = {"type": "map", "keyType": "string", "valueType": structure, "valueContainsNull": True}
    at = {"type": "struct", "fields": [{"name": "x", "type": "long"}]}
    return of_json(json.loads(_schema(("n", n), ("price", "decimal(10,2)"), ("at", at), (tags, array), ("of", of))))


def test_types_of_state_are_texts() -> None:
    assert _fields("integer", "q", "tags") == {
        "n": "int",
        "price": "decimal(10,2)",
        "at": {"x": "bigint"},
        "tags": "array<string>",
        "of": {"key": "string", "value": {"q": "smallint"}},
    }


def test_schema_differences_name_each_field_and_nested_field() -> None:
    before, after = _fields("integer", "q", "tags"), _fields("long", "z", "labels")
    expected = "n int -> bigint, tags array<string> is gone, of.value.q smallint is gone, of.value.z smallint added"
    assert differences(before, after) == f"{expected}, labels array<string> added"
    assert list(lost(before, after)) == ["tags array<string>", "of.value.q smallint"]
    assert differences(before, before) == "" and not list(lost(before, before))


@pytest.mark.parametrize(
    ("after", "gone"),
    [
        ([("n", "long"), ("note", "string"), ("more", "integer")], ""),
        ([("note", "string"), ("n", "integer")], ""),  # avro goes by names
        ([("n", "integer")], "note string"),
        ([("n", "integer"), ("remark", "string")], "note string"),
    ],
    ids=["grown", "in another order", "removed", "renamed"],
)
def test_what_spark_would_lose_is_refused(tmp_path: Path, after: list[tuple[str, object]], gone: str) -> None:
    first: list[tuple[str, object]] = [("n", "integer"), ("note", "string")]
    uri = _location(tmp_path, "transformWithStateInPySparkExec", [first, after])
    held, now = states(SparkLocation("", "orders", uri, 0)), SparkLocation("", "orders", uri, 1)
    if not gone:
        refuse_lost(held, now)
        return
    with raises(JobError, "state_schema_changed", fields_lost=gone, state="seen", operator=0) as caught:
        refuse_lost(held, now)
    assert caught.error is not None and "airflow ft reset-state orders" in caught.error.remedy


@pytest.mark.parametrize(
    ("operator", "name"), [("transformWithStateInPySparkExec", "seen"), ("stateStoreSave", "default")]
)
def test_an_operator_has_names_and_types_of_states(tmp_path: Path, operator: str, name: str) -> None:
    uri = _location(tmp_path, operator, [[("n", "integer")], [("n", "long"), ("tags", {"type": "array"})]])
    [found] = operators(SparkLocation("", "orders", uri, 1))
    assert found.states == {f"{name} key": "k string", f"{name} value": "n long, tags array"}


def test_nothing_is_lost_where_nothing_was(tmp_path: Path) -> None:
    uri = _location(tmp_path, "transformWithStateInPySparkExec", [[("n", "integer")]])
    refuse_lost({}, SparkLocation("", "orders", uri, 0))
    assert states(SparkLocation("", "orders", (tmp_path / "other").as_uri(), 0)) == {}


@pytest.mark.parametrize(
    "message",
    [
        "[STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION] Schema evolution is not possible new value_schema={new} and old"
        " value_schema={old}\nPlease check ...",
        "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match.\nExisting value_schema={old}"
        " and new value_schema={new}.",
        "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match.\nExisting key_schema={old} and"
        " new key_schema={new}.",
    ],
)
def test_a_schema_refusal_has_both_schemas(tmp_path: Path, message: str) -> None:
    base = SparkPosition(_location(tmp_path, "stateStoreSave", [[("n", "integer")]]), 0)
    old = "StructType(StructField(n,IntegerType,true))"
    new = old.replace("Integer", "String")
    condition = message[1 : message.index("]")]
    with raises(JobError, "state_unfit", condition=condition) as caught:
        raise as_error(RuntimeError(message.format(old=old, new=new)), "orders", "jobs:Orders", base)
    assert caught.error is not None and old in caught.error.headline and new in caught.error.headline
    assert "airflow ft reset-state orders" in caught.error.remedy


def test_a_location_without_the_folder_of_its_state_is_named(tmp_path: Path) -> None:
    """Spark says the same as for a changed job."""
    base = SparkPosition(_location(tmp_path, "stateStoreSave", [[("n", "integer")]], "unsaferow"), 0)
    location = SparkLocation("", "orders", base.location, base.batch)
    remember_meaning(location, Memory("4.2.0", ({"keys": [["orders.n"]]},)))
    said = RuntimeError("[STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY] Cannot restart. SQLSTATE: 42K03")
    changed = as_error(said, "orders", "jobs:Orders", base)
    shutil.rmtree(tmp_path / "state")
    lost = as_error(said, "orders", "jobs:Orders", base)
    assert (changed.code, lost.code) == ("state_unfit", "state_files_missing")
