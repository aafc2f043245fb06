"""The cluster of the master `yarn`, as $HADOOP_CONF_DIR describes it."""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from airflow_ft.protocol.doctor import Check
from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.spark.session.connector import installed_version
from airflow_ft.spark.session.yarn import (
    FOLDERS,
    WEB,
    HadoopConfiguration,
    is_yarn,
    queues,
    require_cluster,
    unknown_queue,
)
from airflow_ft.spark.session.yarn_archive import upload
from airflow_ft.spark.task.doctor import examine_spark
from tests.raising import raises
from tools.servers.hadoop import xml
from tools.servers.processes import free_port

RM = "yarn.resourcemanager"


@pytest.fixture(autouse=True)
def no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FOLDERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


@pytest.fixture
def listening() -> Iterator[str]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def configure(monkeypatch: pytest.MonkeyPatch, folder: Path, site: Mapping[str, str | int], **core: str) -> None:
    """Let $HADOOP_CONF_DIR name a folder with these settings."""
    (folder / "yarn-site.xml").write_text(xml(site))
    (folder / "core-site.xml").write_text(xml({"fs.defaultFS": "hdfs://name:8020"} | core))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(folder))


def test_yarn_is_the_master_of_that_name() -> None:
    assert is_yarn("yarn") and not any(map(is_yarn, ("", "local[2]", "spark://yarn:7077", "k8s://yarn")))


@pytest.mark.parametrize("named", [False, True])
def test_a_task_without_the_clusters_configuration_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """Without the variable, or with one that names a folder without yarn-site.xml."""
    if named:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with raises(ConfigurationError, "hadoop_conf_missing", pipeline="orders", folders=[str(tmp_path)] * named):
        require_cluster({}, "orders")


def test_what_spark_env_may_set_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "spark-env.sh").touch()
    assert require_cluster({}) is None


def test_an_unreachable_resource_manager_is_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hadoop's client would try for 15 minutes."""
    away = f"127.0.0.1:{free_port()}"
    configure(monkeypatch, tmp_path, {f"{RM}.address": away})
    with raises(StageError, "server_unreachable", pipeline="orders", servers=[away]):
        require_cluster({}, "orders")


def test_one_of_two_resource_managers_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listening: str
) -> None:
    site: dict[str, str | int] = {f"{RM}.ha.rm-ids": "a, b", f"{RM}.address.a": f"127.0.0.1:{free_port()}"}
    configure(monkeypatch, tmp_path, {**site, f"{RM}.address.b": listening})
    assert require_cluster({}) is not None


def test_addresses_are_those_of_hadoops_own_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site: dict[str, str | int] = {f"{RM}.hostname": "${head}.example", "head": "rm", WEB: "${unknown}:80"}
    configure(monkeypatch, tmp_path, site)
    found = HadoopConfiguration({})
    assert found.file_system == "hdfs://name:8020"
    assert found.addresses() == [("rm.example", 8032)] and found.addresses(WEB) == []
    over = HadoopConfiguration({f"spark.hadoop.{RM}.address": "other:1", f"spark.hadoop.{WEB}": "web"})
    assert over.addresses() == [("other", 1)] and over.addresses(WEB) == [("web", 8088)]


def test_the_queue_is_named_that_yarn_does_not_know() -> None:
    said = (
        "Failed to submit application_1 to YARN : Application application_1 submitted by user ann to unknown queue: etl"
    )
    found = unknown_queue(said, "yarn")
    assert found is not None and found.code == "queue_unknown" and found.fields == {"queue": "etl"}
    assert unknown_queue(said, "spark://m:7077") is None and unknown_queue("no route to host", "yarn") is None


def _examined(conf: Mapping[str, str]) -> dict[str, Check]:
    return {check.name: check for check in examine_spark("yarn", [], conf=conf)}


def test_doctor_checks_the_cluster_and_warns_of_jar_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listening: str
) -> None:
    found = _examined({})
    assert (found["yarn"].verdict, found["yarn"].code) == ("problem", "hadoop_conf_missing")
    configure(monkeypatch, tmp_path, {f"{RM}.address": listening})
    found = _examined({})
    assert (found["yarn"].verdict, found["queue"].verdict, found["spark jars"].verdict) == ("ok", "ok", "warning")
    assert "airflow ft yarn-archive --to" in found["spark jars"].remedy
    for setting, value in (("spark.yarn.archive", "hdfs:///spark.zip"), ("spark.yarn.jars", "local:/opt/jars/*")):
        assert _examined({setting: value})["spark jars"].verdict == "ok"
    for version, verdict in ((installed_version(), "ok"), ("4.0.0", "problem")):
        found = _examined({"spark.yarn.archive": f"hdfs:///spark-{version}-{'0a' * 8}.zip"})
        assert found["spark jars"].verdict == verdict
    assert not {"yarn", "spark jars"} & {check.name for check in examine_spark("local[*]", [])}


def test_a_page_that_does_not_speak_http_lists_no_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def answer() -> None:
            with closing(server.accept()[0]) as connection:
                connection.recv(65536)
                connection.sendall(b"\x15\x03\x03\x00\x02\x02\x28\r\n")  # an alert of TLS

        answering = threading.Thread(target=answer)
        answering.start()
        configure(monkeypatch, tmp_path, {WEB: f"127.0.0.1:{server.getsockname()[1]}"})
        assert queues(HadoopConfiguration({})) == []
        answering.join()


def test_an_archive_belongs_on_hdfs(tmp_path: Path) -> None:
    with raises(ConfigurationError, "path_invalid", path=str(tmp_path)):
        upload(tmp_path, str(tmp_path))
