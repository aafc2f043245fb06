"""Files of changes and snapshots, cut off, of other codecs, of all formats."""

import json
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import ConfigurationError, TransientError, WalCorruptError
from airflow_ft.state import snapshots
from airflow_ft.state.records import Changes, lineage, strings
from airflow_ft.state.rows import StateColumn
from airflow_ft.state.schemas import families
from airflow_ft.state.streams import decompressed
from airflow_ft.state.versions import changed_keys, has_version, open_version
from airflow_ft.state.xxhash import xxh32
from tests.raising import raises
from tests.state.scene import KEY, VALUE, compressed, records, schema_file, text

LINEAGE = [{"version": 3, "checkpointUniqueId": "c"}, {"version": 2, "checkpointUniqueId": "b"}]


def marked(version: int, *entries: tuple[int, bytes, bytes | None]) -> bytes:
    """The second form of a file of changes."""
    found = text(f"v{version}") + (text(json.dumps(LINEAGE)) if version == 4 else b"")
    for kind, key, value in entries:
        found += bytes([kind]) + struct.pack(">i", len(key)) + key
        found += struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    return found + b"\0"


PUT, REMOVE, APPEND = 0x01, 0x10, 0x11


def test_each_format_says_the_same() -> None:
    plain = records({b"a": b"1", b"b": None, b"": b""})
    expected = {b"a": b"1", b"b": None, b"": b""}
    entries = ((PUT, b"a", b"1"), (REMOVE, b"b", None), (PUT, b"", b""))
    headed = text("v3") + text(json.dumps(LINEAGE)) + plain
    for data in (plain, headed, marked(2, *entries), marked(4, *entries)):
        found = Changes()
        found.apply(data, "1.changelog")
        assert found.values == expected and found.added == {}
    assert lineage(headed) == lineage(marked(4)) == [(3, "c"), (2, "b")] and lineage(plain) == []


def test_what_is_appended_is_put_behind_what_was_there() -> None:
    found = Changes()
    found.apply(marked(2, (APPEND, b"of before", b"1"), (PUT, b"here", b"2"), (APPEND, b"here", b"3")), "1")
    found.apply(marked(2, (APPEND, b"of before", b"4"), (REMOVE, b"here", None), (APPEND, b"here", b"5")), "2")
    assert found.added == {b"of before": b"14"} and found.values == {b"here": b"5"}
    found.apply(marked(2, (REMOVE, b"of before", None)), "3")
    assert found.added == {} and found.values[b"of before"] is None


@pytest.mark.parametrize("comma", [b"", b","])
def test_a_list_has_commas_or_none(comma: bytes) -> None:
    row = b"\0" + bytes(16)
    part = struct.pack("<i", len(row)) + row
    assert list(strings(comma.join([part] * 3))) == [row] * 3
    with raises(WalCorruptError, "state_damaged"):
        list(strings(part[:-1]))


def test_truncated_files_and_unknown_formats_are_refused() -> None:
    for data in (records({b"a": b"1"})[:-1], records({b"a": b"1" * 9})[:-9], marked(2, (PUT, b"a", b"1"))[:-1], b""):
        with raises(WalCorruptError, "state_damaged", path="1.changelog") as caught:
            Changes().apply(data, "1.changelog")
        assert caught.error is not None and "`airflow ft reset-state" in caught.error.remedy
    with raises(ConfigurationError, "state_unreadable", reason="a record of kind 2"):
        Changes().apply(marked(2, (2, b"a", b"b")), "1.changelog")
    with raises(ConfigurationError, "state_unreadable", reason="a file of changes of format 5"):
        Changes().apply(text("v5"), "1.changelog")


def test_codecs() -> None:
    data = b"of Spark, " * 10_000
    stored = struct.pack("<8sBiiI", b"LZ4Block", 0x15, 5, 5, xxh32([b"Spark"], 0x9747B28C)[0] & 0x0FFFFFFF) + b"Spark"
    stored += struct.pack("<8sBiiI", b"LZ4Block", 0x15, 0, 0, 0)
    assert decompressed(compressed(data), "x") == data and decompressed(stored, "x") == b"Spark"
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    zstd = sink.getvalue().to_pybytes()
    assert decompressed(zstd, "x") == data
    with raises(ConfigurationError, "state_unreadable", path="7.delta"):
        decompressed(b"\x82SNAPPY\0", "7.delta")
    for broken in (
        compressed(data)[:40],
        stored[:-1],
        stored[:-21],
        b"",
        b"another codec",
        compressed(data)[:25] + b"\xff" * 30,
    ):
        with raises(WalCorruptError, "checksum_mismatch") as damaged:
            decompressed(broken, "7.delta")
        assert "7.delta" in damaged.value.headline


def test_schemas() -> None:
    [family] = families(schema_file(), "schema")
    assert (family.key, family.value, family.name) == (KEY, VALUE, "default")
    with raises(ConfigurationError, "state_unreadable", path="schema", version=4):
        families(text("v4"), "schema")
    for broken in (b"", schema_file()[:50], text("x1")):
        with raises(WalCorruptError, "state_damaged", path="schema"):
            families(broken, "schema")


def test_names_in_a_schema_may_have_any_characters() -> None:
    key = (StateColumn("k💰\0\ud83d", "string"),)
    [family] = families(schema_file(key), "schema")
    assert family.key == key
    written = '{"type":"struct","fields":[{"name":"💰","type":"long"}]}'.encode("utf-16-le")
    at = written.index("💰".encode("utf-16-le")) + 2
    halves = (written[:at].decode("utf-16-le", "surrogatepass"), written[at:].decode("utf-16-le", "surrogatepass"))
    split = text("v2") + 2 * (struct.pack(">i", 2) + b"".join(map(text, halves)))
    assert families(split, "schema")[0].key == (StateColumn("💰", "long"),)


def rocks(
    folder: Path,
    version: int,
    values: dict[bytes, bytes],
    id: str = "",
    *,
    sst_files: Sequence[Mapping[str, str]] = (),
) -> None:
    """A full snapshot, as Spark's state store puts one there. `sst_files`: further ones that it names."""
    from rocksdict import Options, Rdict

    work = folder / f"work-{version}"
    with Rdict(str(work), Options(raw_mode=True)) as db:
        for key, value in values.items():
            db[key] = value
        db.flush()
    (folder / "SSTs").mkdir(exist_ok=True)
    metadata: dict[str, Any] = {
        "sstFiles": [*sst_files],
        "numKeys": len(values),
        "columnFamilyMapping": {"default": 1, "c": 2},
    }
    with zipfile.ZipFile(folder / f"{version}{id}.zip", "w") as archive:
        for path in sorted(work.iterdir()):
            if path.suffix == ".sst":
                name = f"{path.stem}-of-{version}.sst"
                path.rename(folder / "SSTs" / name)
                metadata["sstFiles"].append({"localFileName": path.name, "dfsSstFileName": name, "sizeBytes": 1})
            elif path.name.startswith(("CURRENT", "MANIFEST", "OPTIONS")):
                archive.write(path, path.name)
        archive.writestr("metadata", "v1\n" + json.dumps(metadata))


def test_an_open_rocksdb_snapshot_stays_readable_when_removed(tmp_path: Path) -> None:
    values = {b"\2\0a": b"1", b"\2\0b": b"2", b"\2\1c": b"3", b"\3\0d": b"4"}
    rocks(tmp_path, 2, values)
    changes = marked(
        2, (PUT, b"\2\0a", b"10"), (REMOVE, b"\2\0b", None), (APPEND, b"\2\1c", b"0"), (PUT, b"\2\0e", b"5")
    )
    (tmp_path / "3.changelog").write_bytes(compressed(changes))
    store = open_version(tmp_path.as_uri(), 3)
    for path in [*(tmp_path / "SSTs").iterdir(), *tmp_path.glob("*.*")]:
        path.unlink()
    expected = {b"\2\0a": b"10", b"\2\1c": b"30", b"\2\0e": b"5"}
    assert store.families == {"default": 1, "c": 2}
    assert dict(store.items(b"\2")) == expected and dict(store.items()) == {**expected, b"\3\0d": b"4"}
    assert dict(store.items(b"\2\0")) == {b"\2\0a": b"10", b"\2\0e": b"5"}
    assert [store.get(key) for key in (b"\2\0a", b"\2\0b", b"\2\1c", b"\3\0d", b"x")] == [
        b"10",
        None,
        b"30",
        b"4",
        None,
    ]
    store.close()
    with raises(TransientError, "state_pruned", missing="version 3"):
        open_version(tmp_path.as_uri(), 3)


def test_missing_and_damaged_snapshot_files_are_told_apart(tmp_path: Path) -> None:
    rocks(tmp_path, 1, {b"a": b"1"})
    [file] = (tmp_path / "SSTs").iterdir()
    data = file.read_bytes()
    file.unlink()
    with raises(TransientError, "state_pruned", missing="1.zip"):
        open_version(tmp_path.as_uri(), 1)
    file.write_bytes(data[: len(data) // 2])
    with raises(WalCorruptError, "state_damaged") as caught:
        open_version(tmp_path.as_uri(), 1)
    assert caught.error is not None and "1.zip" in caught.error.headline


@pytest.mark.parametrize("field", ["localFileName", "dfsSstFileName"])
@pytest.mark.parametrize("name", ["../planted", "/planted", "..", ""])
def test_a_snapshot_names_no_file_outside_of_its_folder(tmp_path: Path, field: str, name: str) -> None:
    named = {"localFileName": "000009.sst", "dfsSstFileName": "9-of-1.sst", field: name}
    rocks(tmp_path, 1, {b"a": b"1"}, sst_files=[named])
    (tmp_path / "planted").write_text("")
    with raises(WalCorruptError, "state_damaged") as caught:
        open_version(tmp_path.as_uri(), 1)
    assert caught.error is not None and repr(name) in caught.error.headline


def test_a_snapshot_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rocks(tmp_path, 1, {b"a": b"1"})
    monkeypatch.setattr(snapshots, "_MOST_BYTES", 100)
    with raises(WalCorruptError, "state_damaged"):
        open_version(tmp_path.as_uri(), 1)


def test_files_with_ids_are_followed_by_their_lineage(tmp_path: Path) -> None:
    """Version 3 was written twice: by a task that nobody heard of again, too."""
    rocks(tmp_path, 2, {b"a": b"1"}, "_b")
    for name, value in (("3_c", b"3"), ("3_x", b"99"), ("4_d", b"4")):
        key = name[:1].encode()
        (tmp_path / f"{name}.changelog").write_bytes(compressed(marked(4, (PUT, key, value))))
    store = open_version(tmp_path.as_uri(), 4, "d")
    assert dict(store.items()) == {b"a": b"1", b"3": b"3", b"4": b"4"}
    store.close()
    with raises(TransientError, "state_pruned", missing="version 4"):
        open_version(tmp_path.as_uri(), 4, "e")


def test_changed_keys_are_known_only_if_all_change_files_exist(tmp_path: Path) -> None:
    for version in (2, 3):
        (tmp_path / f"{version}.delta").write_bytes(compressed(records({b"%d" % version: b"", b"both": None})))
    folder = tmp_path.as_uri()
    assert changed_keys(folder, 1, 3) == {b"2", b"3", b"both"} and changed_keys(folder, 3, 3) == set()
    assert changed_keys(folder, 0, 3) is None and changed_keys(folder, 1, 4) is None
    assert has_version(folder, 3) and not has_version(folder, 4)


def test_checksums_are_those_of_xxhash() -> None:
    """Values that the algorithm's own implementation gives."""
    assert xxh32([b"", b"a", b"abc", b"Nobody inspects the spammish repetition"], 0) == [
        0x02CC5D05, 0x550D7456, 0x32D153FF, 0xE2293B2F,
    ]  # fmt: skip
    assert xxh32([b""], 0x9747B28C) == xxh32([b""] * 3, 0x9747B28C)[2:]
    assert len(set(xxh32([bytes([n]) * 100 for n in range(9)], 1))) == 9
