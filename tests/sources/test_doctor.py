"""What `airflow ft doctor` says of a folder of files, and of a socket."""

from pathlib import Path

import pytest

from airflow_ft.core.doctor import Verdict
from airflow_ft.core.ports import ConnectionInfo
from airflow_ft.sources import CustomSource, FileSource, SocketSource
from airflow_ft.sources.doctor import examine_source


def _found(path: str) -> dict[str, tuple[Verdict, str]]:
    def connections(conn_id: str) -> ConnectionInfo:
        raise AssertionError(f"files need no connection, not {conn_id}")

    checks = examine_source("files", FileSource(path=path, schema="id bigint"), connections)
    return {f"{check.name} {check.verdict}": (check.verdict, check.text) for check in checks}


@pytest.mark.parametrize("pattern", ["", "/*"])
def test_names_that_spark_leaves_out_or_cannot_read_are_told(tmp_path: Path, pattern: str) -> None:
    for name in (
        "_a.json",
        ".b.json",
        "c.json._COPYING_",
        "12:30.json",
        "fine.json",
        "_k=1.json",
        "_SUCCESS",
        ".c.crc",
    ):
        (tmp_path / name).touch()
    found = _found(f"{tmp_path}{pattern}")
    assert found["folder ok"]
    assert found["names warning"][1].endswith(": .b.json, _a.json, c.json._COPYING_")
    assert found["names problem"][1].endswith(": 12:30.json")


def test_a_folder_of_plain_names_is_well_and_many_are_counted(tmp_path: Path) -> None:
    (tmp_path / "fine.json").touch()
    assert list(_found(str(tmp_path))) == ["folder ok"]
    for n in range(10):
        (tmp_path / f"_{n}.json").touch()
    assert _found(f"file://{tmp_path}")["names warning"][1].endswith("_0.json, _1.json, _2.json and 7 more")


def test_a_socket_is_not_connected_to() -> None:
    """Nothing listens there."""
    [check] = examine_source("lines", SocketSource(host="localhost", port=1), lambda _: ConnectionInfo("", ""))
    assert check.verdict is Verdict.OK and "was not connected to" in check.text


def test_a_class_of_ones_own_is_not_looked_at() -> None:
    source = CustomSource(data_source="jobs.lines:Lines", replayable=True)
    [check] = examine_source("lines", source, lambda _: ConnectionInfo("", ""))
    assert check.text == "jobs.lines:Lines is for the driver to import: it was not looked at"
