"""Spark's checkpoint location: continued after a clean end, else copied and cut back to what was published."""

import json
from pathlib import Path

import pytest

from airflow_ft.protocol.errors import ConfigurationError, StageError, WalCorruptError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.state.location_files import keep
from airflow_ft.spark.state.locations import (
    PLACES_FILE,
    SparkLocation,
    check_sources,
    has_places,
    open_location,
    set_places,
)
from airflow_ft.wal.checksums import write_checksum
from airflow_ft.wal.local import LocalFileSystem, local_path
from tests.raising import raises


def _location(root: Path, batches: int, committed: int | None = None) -> Path:
    """What Spark leaves after `batches` batches, of which it has committed some."""
    path = root / "p" / "spark" / "1-1"
    names = ["metadata", "sources/0/0", "sources/0/1", "state/0/_metadata/metadata", "state/0/0/_metadata/schema"]
    names += ["state/0/0/SSTs/0001-abc.sst", "commits/.9.uuid.tmp"]
    for batch in range(batches):
        names += [f"offsets/{batch}"]
        names += [f"state/0/0/{batch + 1}.delta", f"state/0/0/.{batch + 1}.delta.crc"]
        names += [f"state/0/1/{batch + 1}.zip", f"state/0/1/{batch + 1}.changelog", f"state/0/2/{batch + 1}.snapshot"]
        names += [f"state/0/3/left/{batch + 1}_0a-1b.zip", f"state/0/3/left/{batch + 1}_0a_1b.changelog"]
        names += [
            f"state/0/3/left/{batch + 1}_0a_1b.changelog.crc",
            f"state/0/3/left/.{batch + 1}_0a_1b.changelog.crc.crc",
        ]
        if committed is None or batch < committed:
            names += [f"commits/{batch}"]
    for name in names:
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        is_entry = name.startswith(("offsets/", "commits/")) and file.name.isdigit()
        file.write_text("v1\n{}" if is_entry else name)
        if is_entry:
            write_checksum(file)
    return path


def _files(uri: str) -> set[str]:
    base = local_path(uri)
    return {str(path.relative_to(base)) for path in base.rglob("*") if path.is_file()}


def _logged(path: Path, source: int, last: int, offsets: int) -> None:
    """A log of read files up to the id `last`, and the offset `offsets` in each batch's line of the source."""
    folder = path / "sources" / str(source)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(last + 1):
        entry = {"path": f"file:///in/f%20{number}", "timestamp": 1000 + number, "batchId": number}
        (folder / str(number)).write_text(f"v1\n{json.dumps(entry, separators=(',', ':'))}")
        write_checksum(folder / str(number))
    for file in (path / "offsets").glob("[0-9]*"):
        file.write_text("v1\n{}\n-\n" + json.dumps({"logOffset": offsets}))
        write_checksum(file)


def _open(root: Path, base: SparkPosition | None, clean: bool) -> SparkLocation:
    return open_location(str(root), "p", 2, 5, base, clean)


def test_without_a_base_the_folder_is_new(tmp_path: Path) -> None:
    location = _open(tmp_path, None, False)
    assert location.uri == (tmp_path / "p/spark/2-5").as_uri() and location.batch == -1
    assert location.offsets(-1) == []


def test_after_a_clean_end_the_folder_is_continued_in_place(tmp_path: Path) -> None:
    old = _location(tmp_path, 3)
    location = _open(tmp_path, SparkPosition(old.as_uri(), 2), True)
    assert location.uri == old.as_uri() and location.batch == 2


def test_in_another_root_it_is_continued_in_a_copy(tmp_path: Path) -> None:
    """So the old root can go when its rows are delivered."""
    old = _location(tmp_path / "old", 3)
    location = _open(tmp_path / "new", SparkPosition(old.as_uri(), 2), True)
    assert location.uri == (tmp_path / "new/p/spark/2-5").as_uri() and location.batch == 2
    assert _files(old.as_uri()) - _files(location.uri) == {"commits/.9.uuid.tmp"}


def test_an_unclean_end_cuts_the_copy_to_the_published_batch(tmp_path: Path) -> None:
    old = _location(tmp_path, 4, committed=3)
    before = _files(old.as_uri())
    location = _open(tmp_path, SparkPosition(old.as_uri(), 1), False)
    found = _files(location.uri)
    assert location.uri == (tmp_path / "p/spark/2-5").as_uri() and location.batch == 1
    assert {name for name in found if name.startswith(("offsets", "commits"))} == {
        f"{log}/{name}" for log in ("offsets", "commits") for name in ("0", "1", ".0.crc", ".1.crc")
    }
    assert {"metadata", "sources/0/0", "sources/0/1", "state/0/0/_metadata/schema"} <= found
    assert _files(old.as_uri()) == before


def test_state_of_unpublished_batches_is_not_copied(tmp_path: Path) -> None:
    """A snapshot that they left would be loaded in preference to the replay's own change log of that version."""
    old = _location(tmp_path, 4)
    found = _files(_open(tmp_path, SparkPosition(old.as_uri(), 1), False).uri)
    versions = {name for name in found if name.startswith("state") and name.rsplit("/", 1)[1].lstrip(".")[0].isdigit()}
    versions.discard("state/0/0/SSTs/0001-abc.sst")
    assert versions == {
        f"state/0/{rest}"
        for v in (1, 2)
        for rest in (
            f"0/{v}.delta",
            f"0/.{v}.delta.crc",
            f"1/{v}.zip",
            f"1/{v}.changelog",
            f"2/{v}.snapshot",
            f"3/left/{v}_0a-1b.zip",
            f"3/left/{v}_0a_1b.changelog",
            f"3/left/{v}_0a_1b.changelog.crc",
            f"3/left/.{v}_0a_1b.changelog.crc.crc",
        )
    }
    assert "state/0/0/SSTs/0001-abc.sst" in found


def test_a_zombie_that_replaces_files_does_not_change_the_copy(tmp_path: Path) -> None:
    old = _location(tmp_path, 2)
    location = _open(tmp_path, SparkPosition(old.as_uri(), 1), False)
    replaced = old / "state/0/0/2.delta"
    (old / "new").write_text("the zombie's")
    (old / "new").rename(replaced)
    assert (local_path(location.uri) / "state/0/0/2.delta").read_text() == "state/0/0/2.delta"


def test_a_copy_shares_the_disk_space(tmp_path: Path) -> None:
    old = _location(tmp_path, 2)
    location = _open(tmp_path, SparkPosition(old.as_uri(), 1), False)
    assert (old / "metadata").samefile(local_path(location.uri) / "metadata")


def test_a_clean_base_with_later_batches_is_copied_all_the_same(tmp_path: Path) -> None:
    old = _location(tmp_path, 3)
    assert _open(tmp_path, SparkPosition(old.as_uri(), 1), True).uri != old.as_uri()


@pytest.mark.parametrize("batch", [3, 9])
def test_a_base_that_is_not_there_is_an_error_and_leaves_nothing(tmp_path: Path, batch: int) -> None:
    old = _location(tmp_path, 4, committed=3)
    with raises(WalCorruptError, "state_files_missing", batch=batch):
        _open(tmp_path, SparkPosition(old.as_uri(), batch), False)
    assert not (tmp_path / "p/spark/2-5").exists()
    with raises(WalCorruptError, "state_files_missing"):
        _open(tmp_path, SparkPosition((tmp_path / "nowhere").as_uri(), 0), True)


def test_another_order_of_sources_is_refused(tmp_path: Path) -> None:
    first = _open(tmp_path, None, False)
    check_sources(first, ["orders", "refunds"])
    again = SparkLocation(str(tmp_path), "p", first.uri, 3)
    check_sources(again, ["orders", "refunds"])
    with raises(ConfigurationError, "sources_changed"):
        check_sources(again, ["refunds", "orders"])


def test_a_folder_of_another_history_is_never_continued(tmp_path: Path) -> None:
    """A decision log that was restored, or created anew, gives epoch and attempt out again."""
    old = _location(tmp_path, 3).rename(tmp_path / "p" / "spark" / "2-5")
    base = _location(tmp_path, 3)
    for position in (None, SparkPosition(base.as_uri(), 1)):
        with raises(StageError, "attempt_folder_exists"):
            _open(tmp_path, position, False)
    assert _files(old.as_uri()) == _files(base.as_uri()), "nothing in it was touched"


def test_files_logged_for_an_unpublished_batch_are_listed_again(tmp_path: Path) -> None:
    """Else a file that went before it was read would stand in the way for ever, or be taken for read."""
    old = _location(tmp_path, 3)
    _logged(old, 1, last=12, offsets=10)
    (old / "sources/1/9").rename(old / "sources/1/9.compact")
    found = _files(_open(tmp_path, SparkPosition(old.as_uri(), 1), False).uri)
    kept = {name for name in found if name.startswith("sources/1/") and "/." not in name}
    assert kept == {f"sources/1/{n}" for n in (*range(9), "9.compact", 10)}
    assert "sources/1/.10.crc" in found and "sources/1/.11.crc" not in found
    assert {"sources/0/0", "sources/0/1"} <= found, "not a log of files: Kafka's starting positions, for example"


def test_a_source_that_has_read_nothing_yet_has_logged_nothing(tmp_path: Path) -> None:
    old = _location(tmp_path, 3)
    _logged(old, 0, last=2, offsets=0)  # its line says "-"
    found = _files(_open(tmp_path, SparkPosition(old.as_uri(), 1), False).uri)
    assert not [name for name in found if name.startswith("sources/0/")]


def test_a_folder_is_copied_if_its_log_of_read_files_is_ahead(tmp_path: Path) -> None:
    old = _location(tmp_path, 3)
    _logged(old, 1, last=11, offsets=10)
    assert _open(tmp_path, SparkPosition(old.as_uri(), 2), True).uri != old.as_uri()


def _with_schemas(path: Path, of: str) -> None:
    """What transformWithState leaves in a location: absolute paths into the location `of`."""
    schema = "state/0/_stateSchema/default/0_c4d7"
    files = {schema: "schema", "state/0/_metadata/v2/2": _metadata("/gone")}
    for name, text in {**files, "state/0/_metadata/v2/0": _metadata(of)}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    write_checksum(path / "state/0/_metadata/v2/0")


def _metadata(of: str) -> str:
    store = {"storeName": "default", "stateSchemaFilePaths": [f"file:{of}/state/0/_stateSchema/default/0_c4d7"]}
    return "v2\n" + json.dumps({"operatorInfo": {"operatorId": 0}, "stateStoreInfo": [store]}, separators=(",", ":"))


@pytest.mark.parametrize("of", ["itself", "an older one"])
def test_a_copy_names_its_state_schemas_by_its_own_paths(tmp_path: Path, of: str) -> None:
    old = _location(tmp_path, 4)
    _with_schemas(old, str(old) if of == "itself" else "/swept/p/spark/0-1")
    before = (old / "state/0/_metadata/v2/0").read_text()
    copy = local_path(_open(tmp_path, SparkPosition(old.as_uri(), 1), False).uri)
    assert (copy / "state/0/_metadata/v2/0").read_text() == _metadata(str(copy))
    assert not (copy / "state/0/_metadata/v2/.0.crc").exists(), "Hadoop would find that it does not fit"
    assert not (copy / "state/0/_metadata/v2/2").exists(), "it is of an unpublished batch"
    assert (old / "state/0/_metadata/v2/0").read_text() == before, "replaced, not edited through a link"
    again = local_path(open_location(str(tmp_path), "p", 3, 6, SparkPosition(copy.as_uri(), 1), False).uri)
    assert (again / "state/0/_metadata/v2/0").read_text() == _metadata(str(again))


def test_a_location_with_schema_paths_of_another_is_copied(tmp_path: Path) -> None:
    """Copies were made so once: they work for as long as the one that they were made from is there."""
    old = _location(tmp_path, 1)
    _with_schemas(old, "/swept/p/spark/0-1")
    (old / "state/0/_metadata/v2/2").unlink()
    copy = _open(tmp_path, SparkPosition(old.as_uri(), 0), True)
    assert copy.uri != old.as_uri()
    assert (local_path(copy.uri) / "state/0/_metadata/v2/0").read_text() == _metadata(str(local_path(copy.uri)))
    own = open_location(str(tmp_path), "p", 3, 6, SparkPosition(copy.uri, 0), True)
    assert own.uri == copy.uri


def test_a_schema_that_is_missing_is_named(tmp_path: Path) -> None:
    old = _location(tmp_path, 1)
    _with_schemas(old, str(old))
    (old / "state/0/_stateSchema/default/0_c4d7").unlink()
    with raises(WalCorruptError, "state_files_missing") as caught:
        _open(tmp_path, SparkPosition(old.as_uri(), 0), False)
    assert caught.error is not None and caught.error.fields["path"].endswith("/0_c4d7")


def test_a_copy_that_was_not_finished_is_used_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process dies while it writes the paths into its copy; the next attempt makes another copy."""
    old = _location(tmp_path, 1)
    _with_schemas(old, str(old))
    base = SparkPosition(old.as_uri(), 0)

    def killed(self: LocalFileSystem, uri: str, data: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            _open(tmp_path, base, False)
    assert (tmp_path / "p/spark/2-5/offsets/0").exists(), "it died in the middle"
    with raises(StageError, "attempt_folder_exists"):
        _open(tmp_path, base, False)
    next_one = open_location(str(tmp_path), "p", 3, 6, base, False)
    assert (local_path(next_one.uri) / "state/0/_metadata/v2/0").read_text() == _metadata(str(local_path(next_one.uri)))


def test_a_source_used_twice_has_an_offset_line_for_each_use(tmp_path: Path) -> None:
    """Spark writes AAB for a job that reads A twice and B once; and asserts that the next job has as many uses."""
    path = _location(tmp_path, 1)
    location = SparkLocation(str(tmp_path), "p", path.as_uri(), 0)
    base = SparkPosition(location.uri, 0)
    offsets, checksum = path / "offsets" / "0", path / "offsets" / ".0.crc"
    offsets.write_text('v1\n{}\n{"logOffset":1}\n{"logOffset":1}\n{"logOffset":7}')
    write_checksum(offsets)
    assert has_places(base, [0, 1, 2]) and not has_places(base, [0, 0, 1])
    keep(location.uri, PLACES_FILE, [0, 0, 1])
    assert location.offsets(0) == [{"logOffset": 1}, {"logOffset": 7}] and has_places(base, [0, 0, 1])
    set_places(location, [0, 0, 1])
    assert checksum.exists(), "nothing was changed"
    set_places(location, [0, 1, 0, 1])
    assert not checksum.exists(), "it would not fit what was written anew"
    assert offsets.read_text().split("\n")[2:] == [f'{{"logOffset":{n}}}' for n in (1, 7, 1, 7)]
    assert location.offsets(0) == [{"logOffset": 1}, {"logOffset": 7}]
    set_places(location, [0, 1])
    assert offsets.read_text() == 'v1\n{}\n{"logOffset":1}\n{"logOffset":7}' and has_places(base, [0, 1])
    assert location.offsets(0) == [{"logOffset": 1}, {"logOffset": 7}] and has_places(None, [0, 0])


def test_a_new_location_keeps_the_places_for_the_batches_to_come(tmp_path: Path) -> None:
    location = open_location(str(tmp_path), "p", 1, 1, None, True)
    set_places(location, [0, 1])
    assert location.places() is None
    set_places(location, [0, 0])
    assert location.places() == [0, 0]
