"""Answers of a NameNode, as errors of this package."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import nullcontext
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.protocol.errors import StorageUnavailableError
from airflow_ft.wal import hdfs
from airflow_ft.wal.hdfs_errors import translated_errors
from tests.raising import raises


@pytest.mark.parametrize(
    ("answer", "code", "number"),
    [
        ("The directory item limit of /lake is exceeded: limit=2 items=2", "limit_reached", errno.EDQUOT),
        ("Name node is in safe mode: SafeModeException", "storage_unavailable", errno.EAGAIN),
        ("/a/b can't be moved from an encryption zone.", "file_systems_differ", errno.EXDEV),
        ("Cannot find locations for /_lake in MountTableResolver", "file_systems_differ", errno.EXDEV),
        ("The maximum path component name limit of x is exceeded: limit=1", "path_invalid", errno.ENAMETOOLONG),
    ],
)
def test_an_answer_of_the_name_node_has_its_own_remedy(answer: str, code: str, number: int) -> None:
    with raises(StorageUnavailableError, code, errno=number), translated_errors("hdfs://namenode/lake", 1):
        raise RuntimeError(f'RPCError("java.io.IOException", "{answer}")')


ROOM = "hdfs://namenode/lake", "hdfs://namenode/_lake/1", "hdfs://namenode/_lake/1/marker"


class Vanishing:
    """A client; the folder `b` goes between the list of its parent and its own."""

    def list_status(self, path: str, recursive: bool = False) -> Iterator[Any]:
        if path == "/lake":
            for name in "abc":
                yield SimpleNamespace(path=f"/lake/{name}", isdir=True, length=0)
                yield from self.list_status(f"/lake/{name}") if recursive else ()
        elif path in ("/lake/a", "/lake/c"):
            yield SimpleNamespace(path=f"{path}/rows", isdir=False, length=7)
        else:
            raise FileNotFoundError(path)


def test_a_folder_that_vanishes_while_listed_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs, "_client", lambda _: Vanishing())
    assert hdfs.HdfsFileSystem().tree("hdfs://namenode/lake") == {"a/rows": 7, "c/rows": 7}
    assert hdfs.HdfsFileSystem().tree("hdfs://namenode/gone") == {}


@pytest.mark.parametrize(
    ("answer", "passes"), [("AccessControlException: denied", True), ("SafeModeException: wait", False)]
)
def test_a_folder_with_unreadable_parts_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, answer: str, passes: bool
) -> None:
    def refuse(_: str) -> None:
        raise RuntimeError(f'RPCError("java.io.IOException", "{answer}")')

    monkeypatch.setattr(hdfs, "_client", lambda _: SimpleNamespace(get_content_summary=refuse))
    with nullcontext() if passes else raises(StorageUnavailableError, "storage_unavailable"):
        hdfs.HdfsFileSystem().require_room(*ROOM)


def test_a_folder_that_takes_too_long_to_measure_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Event()
    monkeypatch.setattr(hdfs, "_MEASURE", 0.01)
    monkeypatch.setattr(hdfs, "_client", lambda _: SimpleNamespace(get_content_summary=lambda _: asked.wait(60)))
    hdfs.HdfsFileSystem().require_room(*ROOM)
    asked.set()


@pytest.mark.parametrize(("quota", "asks", "passes"), [(None, 1, True), (7, 2, True), (6, 2, False)])
def test_a_quota_counts_the_prepared_folder_and_its_marker(
    monkeypatch: pytest.MonkeyPatch, quota: int | None, asks: int, passes: bool
) -> None:
    asked: list[str] = []

    def summary(path: str) -> Any:
        asked.append(path)
        none = (1 << 64) - 1
        bound = quota if quota is not None and path == "/lake" else none
        space = none if quota is None else quota + 9  # of 5 and 1 bytes, and a block of 2 * 5 for the marker
        return SimpleNamespace(
            quota=bound, space_quota=space, space_consumed=5 if path == "/lake" else 1, file_count=2, directory_count=1
        )

    status = SimpleNamespace(blocksize=5, replication=2)
    client = SimpleNamespace(get_content_summary=summary, get_file_info=lambda _: status)
    monkeypatch.setattr(hdfs, "_client", lambda _: client)
    with nullcontext() if passes else raises(StorageUnavailableError, "limit_reached"):
        hdfs.HdfsFileSystem().require_room(*ROOM)
    assert asked == ["/lake", "/_lake/1"][:asks]


def test_a_folder_gets_its_mode_though_its_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "/lake": SimpleNamespace(permission=0o700, group="a"),
        "/_lake": SimpleNamespace(permission=0o755, group="b"),
    }

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError('RPCError("org.apache.hadoop.security.AccessControlException", "not in the group")')

    client = SimpleNamespace(
        mkdirs=lambda *_, **__: None,
        get_file_info=found.__getitem__,
        get_acl_status=lambda _: SimpleNamespace(entries=[]),
        set_owner=refuse,
        set_permission=lambda path, mode: setattr(found[path], "permission", mode),
    )
    monkeypatch.setattr(hdfs, "_client", lambda _: client)
    assert not hdfs.HdfsFileSystem().make_like("hdfs://namenode/_lake", "hdfs://namenode/lake")
    assert found["/_lake"].permission == 0o700
