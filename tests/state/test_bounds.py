"""A handle in a process with other work: what it holds open, and how much it reads."""

import errno
import json
import os
import resource
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase

import pytest

from airflow_ft.protocol.errors import ConfigurationError, StorageUnavailableError
from airflow_ft.state import handle as handle_module
from airflow_ft.state import positions
from airflow_ft.state.bounds import Bounds
from airflow_ft.state.handle import State
from airflow_ft.state.hashing import partition_of
from airflow_ft.state.rows import write_row
from airflow_ft.state.versions import Store, open_version
from tests.raising import raises
from tests.state.scene import KEY, OPERATOR, VALUE, Pipeline, compressed, pipeline, records
from tests.state.test_files import rocks
from tests.store.scene import PIPELINE

PARTITIONS = 4
KEYS = {
    partition: key for key in ascii_lowercase for partition in [partition_of(KEY, write_row(KEY, [key]), PARTITIONS)]
}
"""A key in each partition."""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Pipeline]:
    """A checkpoint whose state has one key in each of several partitions."""
    with pipeline(tmp_path) as scene:
        scene.confirmed({})
        info = {**OPERATOR["stateStoreInfo"][0], "numPartitions": PARTITIONS}
        metadata = json.dumps({**OPERATOR, "stateStoreInfo": [info]})
        scene.counts._write("state/0/_metadata/metadata", f"v1\n{metadata}".encode())
        for partition, key in KEYS.items():
            row = {write_row(KEY, [key]): write_row(VALUE, [partition])}
            scene.counts._write(f"state/0/{partition}/1.delta", compressed(records(row)))
        yield scene


def opened(scene: Pipeline, bounds: Bounds) -> State:
    return State(PIPELINE, lambda at: positions.confirmed(scene.store, PIPELINE, at), bounds=bounds)


def test_a_lookup_holds_few_stores_open(scene: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB opens all files of a store, and a key that is missing is looked for in all partitions."""
    held: list[int] = []
    now = 0

    def counted(*given: str | int) -> Store:
        nonlocal now
        now += 1
        held.append(now)
        store = open_version(*given)  # type: ignore[arg-type]

        def close() -> None:
            nonlocal now
            now -= 1

        monkeypatch.setattr(store, "close", close)
        return store

    monkeypatch.setattr(handle_module, "open_version", counted)
    with opened(scene, Bounds(bytes=1 << 20, entries=1, stores=2)) as handle:
        for _ in range(2):
            assert handle.entries(0, "missing") == {}
            for partition, key in KEYS.items():
                [entry] = handle.entries(0, key)["default"]
                assert entry.value == {"count": partition}
    assert max(held) == 2 and len(held) > PARTITIONS
    assert now == 0, "all are closed"


def test_a_lookup_in_all_states_opens_each_store_once(scene: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The states of an operator may share a store, of which few are open."""
    opens = 0

    def counted(*given: str | int) -> Store:
        nonlocal opens
        opens += 1
        return open_version(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(handle_module, "open_version", counted)
    with opened(scene, Bounds(bytes=1 << 20, entries=1, stores=1)) as handle:
        known = handle._catalog(0)
        [table] = known.tables.values()
        tables = {name: replace(table, name=name) for name in "ab"}
        handle._catalogs[0] = replace(known, tables=tables)
        for lookups, key in enumerate(["missing", *KEYS.values()]):
            opens = 0
            assert list(handle.entries(0, key)) == ([*tables] if lookups else [])
            assert opens == (1 if lookups else PARTITIONS)


def test_bytes_are_limited_for_each_lookup(scene: Pipeline) -> None:
    """Earlier lookups of a handle that is kept leave enough for the next one."""
    most = max(path.stat().st_size for path in scene.counts.path.glob("state/0/*/1.delta"))
    with opened(scene, Bounds(bytes=most, entries=1, stores=PARTITIONS)) as handle:
        for _ in range(2):
            for key in KEYS.values():
                assert handle.entries(0, key)
            with raises(ConfigurationError, "state_too_large", most=most):
                handle.entries(0, "missing")


def test_a_process_without_file_descriptors_finds_no_damage(tmp_path: Path) -> None:
    rocks(tmp_path, 1, {b"a": b"1"})
    _, most = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with closing(open_version(tmp_path.as_uri(), 1)):  # what is imported by the first one needs files, too
        pass
    failed = 0
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1, most))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(8):
            os.close(held.pop())
            try:
                open_version(tmp_path.as_uri(), 1).close()
            except OSError as error:
                assert error.errno == errno.EMFILE
                failed += isinstance(error, StorageUnavailableError)
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert failed
