"""What `airflow ft doctor` says of a folder of files, and of a socket."""

import os
import socket
from pathlib import Path

import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.sources import CustomSource, FileSource, KafkaSource, SocketSource
from airflow_ft.sources.doctor import examine_source
from airflow_ft.sources.setup import missing_folders
from tools.servers.hadoop import xml


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
    assert found["names warning"][1].endswith(f": {tmp_path}/.b.json, {tmp_path}/_a.json, {tmp_path}/c.json._COPYING_")
    assert found["names problem"][1].endswith(f": {tmp_path}/12:30.json")


def test_a_folder_of_plain_names_is_well_and_many_are_counted(tmp_path: Path) -> None:
    (tmp_path / "fine.json").touch()
    assert list(_found(str(tmp_path))) == ["folder ok"]
    for n in range(10):
        (tmp_path / f"_{n}.json").touch()
    assert _found(f"file://{tmp_path}")["names warning"][1].endswith(f"{tmp_path}/_2.json and 7 more")


def test_what_spark_would_read_in_another_way_is_told(tmp_path: Path) -> None:
    for name in ("br[0-9]/a.json", "br1/a.json", "in/a [1].json", "in/old/b.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/in/\xe9.json"))).touch()
    assert list(_found(f"{tmp_path}/br[0-9]")) == ["folder problem"]
    assert list(_found(f"{tmp_path}/br[0-9]/*.json")) == ["folder problem"]
    assert list(_found(f"{tmp_path}/{{br1,br2}}")) == ["folder ok"]
    assert list(_found(f"{tmp_path}/br1/a.json")) == ["folder problem"]
    assert list(_found(f"{tmp_path}/in")) == ["folder ok", "folders warning", "encoding problem", "patterns warning"]


def test_a_path_that_belongs_to_hadoop_is_not_looked_for_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Doctor warns if this machine has a folder of that name: the author may mean it."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert list(_found("/nowhere")) == ["folder problem"] and list(_found(str(tmp_path))) == ["folder ok"]
    (tmp_path / "core-site.xml").write_text(xml({"fs.defaultFS": "hdfs://name:8020"}))
    assert list(_found("/nowhere")) == ["folder warning"]
    assert list(_found("file:///nowhere")) == ["folder problem"]
    assert list(_found(f"file://{tmp_path}")) == ["folder ok"]
    assert "this machine has such a folder" in _found(str(tmp_path))["folder warning"][1]


def test_a_socket_is_not_connected_to() -> None:
    """Nothing listens there."""
    [check] = examine_source("lines", SocketSource(host="localhost", port=1), lambda _: ConnectionInfo("", ""))
    assert check.verdict is Verdict.OK and "localhost:1 was not contacted" in check.text


def test_a_class_of_ones_own_is_not_looked_at() -> None:
    source = CustomSource(data_source="jobs.lines:Lines", replayable=True)
    [check] = examine_source("lines", source, lambda _: ConnectionInfo("", ""))
    assert check.verdict is Verdict.OK and "jobs.lines:Lines was not checked" in check.text


def test_a_folder_that_cannot_be_listed_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "k=2").mkdir()
    (tmp_path / "k=1").symlink_to("k=1")
    assert list(_found(str(tmp_path))) == ["folder problem"]


def test_a_pattern_of_topics_asks_the_brokers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, and never answers
        extra = {"bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}", "airflow_ft_timeout": 1}
        connection = ConnectionInfo("kafka", "kafka", extra=extra)
        checks = examine_source("orders", KafkaSource(pattern="x.*", conn_id="kafka"), lambda _: connection)
    assert [check.verdict for check in checks] == [Verdict.PROBLEM]


def test_a_missing_folder_below_a_file_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    source = FileSource(path=f"{tmp_path}/f/x", schema="id int")
    [error] = missing_folders({"a": source}, "file:///")
    assert (error.code, error.fields["source"]) == ("folder_missing", "a")
