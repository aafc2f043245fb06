"""Spark's Kafka connector: chosen from what exists, fetched whole or not at all, examined by `doctor`.

The repository of these tests is a server of their own, with the files that `make install` has fetched.
"""

from __future__ import annotations

import http.server
import logging
import threading
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Check, Verdict
from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.protocol.model import RunKey
from airflow_ft.sources import KafkaSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.session import connector
from airflow_ft.spark.session.submit import settings
from airflow_ft.spark.task.doctor import examine_spark
from tests.raising import raises
from tools.servers.base import local_folder

JARS = local_folder() / "jars" / "spark"
NAMES = sorted(jar.file for jar in connector.choose("4.2.0").jars)


class Repository(http.server.ThreadingHTTPServer):
    """A Maven repository on loopback. `answers`: file name -> bytes; `asked`: what was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = {file.name: file.read_bytes() for file in JARS.glob("*.jar")}
        self.asked: list[tuple[str, str]] = []
        self.logins: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/maven2"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Any = self.server
        group, _, name = self.path.rpartition("/")
        server.asked.append((self.command, name))
        server.logins.append(self.headers.get("Authorization"))
        body = server.answers.get(name)
        if body is None or not group.startswith("/maven2/org/apache/"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Repository]:
    """The only repository; connectors are kept below `tmp_path`."""
    with Repository() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", server.url)
        monkeypatch.setenv("NO_PROXY", "*")
        monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Pretends that a Spark of this version is installed."""

    def install(version: str) -> Path:
        home = tmp_path / f"spark-{version}"
        (home / "jars").mkdir(parents=True)
        (home / "jars" / f"spark-core_2.13-{version}.jar").touch()
        monkeypatch.setenv("SPARK_HOME", str(home))
        return home

    return install


def _request(*, kafka: bool = True, **more: Any) -> StageRequest:
    sources = {"orders": KafkaSource(topics=["orders"]).to_json()} if kafka else {}
    return StageRequest(
        pipeline="orders",
        run=RunKey("d", "r"),
        epoch=3,
        attempt=7,
        store_url="sqlite:////ft.db",
        wal_root="/wal",
        job="jobs.orders",
        sinks=("orders",),
        sources=sources,
        connections={"kafka_default": ConnectionInfo("kafka_default", "kafka")},
        **more,
    )


@pytest.mark.parametrize(
    ("installed", "chosen"),
    [
        ("4.0.0", "4.0.0"),
        ("4.0.5", "4.0.4"),
        ("4.1.2", "4.1.2"),
        ("4.1.4", "4.1.3"),
        ("4.2.0", "4.2.0"),
        ("4.2.1", "4.2.0"),
        ("4.2.1-amzn-0", "4.2.0"),
        ("4.3.0", "4.2.0"),
        ("5.0.0", "4.2.0"),
    ],
)
def test_the_newest_connector_that_is_not_newer_than_spark(installed: str, chosen: str) -> None:
    found = connector.choose(installed)
    assert found.version == chosen
    assert found.same_minor is (installed[:3] == chosen[:3])


@pytest.mark.parametrize("version", ["3.5.9", "2.4.8", "unknown"])
def test_a_spark_that_is_too_old_has_no_connector(version: str) -> None:
    with raises(ConfigurationError, "spark_unfit", version=version):
        connector.choose(version)


def test_what_is_installed_for_the_tests_is_what_the_table_says() -> None:
    pom = (local_folder().parent / "tools" / "jars" / "spark" / "pom.xml").read_text()
    for jar in connector.choose("4.2.0").jars:
        assert f"<artifactId>{jar.artifact}</artifactId>\n      <version>{jar.version}</version>" in pom
        assert connector._is_whole(JARS / jar.file, jar), jar.file


def test_a_spark_without_its_own_connector_gets_an_older_one(
    repository: Repository, spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spark("4.2.1")
    with caplog.at_level(logging.INFO):
        conf = settings(_request(), tmp_path)
    files = [Path(file) for file in conf["spark.jars"].split(",")]
    assert sorted(file.name for file in files) == NAMES
    assert all(file.read_bytes() == (JARS / file.name).read_bytes() for file in files)
    assert "spark.jars.packages" not in conf
    assert "spark-sql-kafka-0-10_2.13 4.2.0 for Spark 4.2.1" in caplog.text
    assert sorted(repository.asked) == [("GET", name) for name in NAMES]
    settings(_request(), tmp_path)
    assert len(repository.asked) == len(NAMES), "what is there is not fetched again"
    (connector.folder() / NAMES[0]).write_bytes(b"the machine died half-way")
    settings(_request(), tmp_path)
    assert repository.asked[len(NAMES) :] == [("GET", NAMES[0])]
    assert sorted(file.name for file in connector.folder().iterdir()) == NAMES, "nothing is left over"


def test_many_that_fetch_at_once_all_get_whole_files(repository: Repository, spark: Any) -> None:
    spark("4.2.1")
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: connector.fetch(connector.choose("4.2.1"), {}), range(6)))
    assert all(files == found[0] for files in found)
    assert not connector.lacking(connector.choose("4.2.1"))


def test_what_the_user_brings_is_used_and_nothing_is_fetched(
    repository: Repository, spark: Any, tmp_path: Path
) -> None:
    home = spark("4.2.1")
    jar = tmp_path / "spark-sql-kafka-0-10_2.13-9.jar"
    jar.touch()
    assert settings(_request(jars=(str(jar),)), tmp_path)["spark.jars"] == str(jar)
    package = "org.apache.spark:spark-sql-kafka-0-10_2.13:9"
    for conf in (
        settings(_request(packages=(package,)), tmp_path),
        settings(_request(conf={"spark.jars.packages": package}), tmp_path),
    ):
        assert conf["spark.jars.packages"] == package and "spark.jars" not in conf
    assert "spark.jars" not in settings(_request(kafka=False), tmp_path)
    (home / "jars" / jar.name).touch()
    assert "spark.jars" not in settings(_request(), tmp_path)
    assert repository.asked == []


def test_a_login_is_sent_only_to_its_own_repository(repository: Repository) -> None:
    login = repository.url.replace("//", "//ada:p%40ss@")
    conf = {"spark.jars.repositories": f"{repository.url}/empty,{login}"}
    connector.fetch(connector.choose("4.2.0"), conf)
    assert set(repository.logins) == {None, f"Basic {b64encode(b'ada:p@ss').decode()}"}
    assert len(repository.asked) == 2 * len(NAMES)


def test_a_failing_repository_is_reported_without_its_login(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", repository.url.replace("//", "//ada:planted-Secret-4@"))
    chosen = connector.choose("4.2.1")
    lost = repository.answers.pop("spark-token-provider-kafka-0-10_2.13-4.0.0.jar")
    jar = "spark-token-provider-kafka-0-10_2.13-4.0.0.jar"
    with raises(StageError, "dependency_unreachable", file=jar) as raised:
        connector.fetch(chosen, {})
    assert raised.error and "404" in raised.error.what and "spark_jars" in raised.error.remedy
    repository.answers["spark-token-provider-kafka-0-10_2.13-4.0.0.jar"] = b"<html>please log in</html>"
    with raises(StageError, "dependency_unreachable", file=jar) as again:
        connector.fetch(chosen, {})
    assert again.error and "checksum" in again.error.what
    assert "planted" not in f"{raised.error}{again.error}{raised.error.fields}{again.error.fields}"
    assert "spark-token-provider-kafka-0-10_2.13-4.0.0.jar" not in [f.name for f in connector.folder().iterdir()]
    repository.answers["spark-token-provider-kafka-0-10_2.13-4.0.0.jar"] = lost
    connector.fetch(chosen, {})


def test_an_unreachable_repository_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "*")
    for place, expected in (
        ("http://127.0.0.1:1", "refused"),
        ("http://nowhere.invalid", "nowhere"),
        ("no url", "Error"),
    ):
        monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", place)
        with raises(StageError, "dependency_unreachable", repositories=[place]) as caught:
            connector.fetch(connector.choose("4.2.1"), {})
        assert caught.error and expected in caught.error.what and "spark.jars.repositories" in caught.error.remedy


def test_a_folder_that_cannot_be_written_to_is_named(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "airflow_ft").write_text("a file in its place")
    with raises(StageError, "folder_not_writable", path=str(connector.folder())) as caught:
        connector.fetch(connector.choose("4.2.1"), {})
    assert caught.error and "spark_jars" in caught.error.remedy


def _check(**more: Any) -> Check:
    checks = examine_spark("", more.pop("jars", ()), **more)
    return [check for check in checks if check.name == "kafka connector"][-1]


def test_doctor_tells_what_a_driver_would_get(repository: Repository, spark: Any, tmp_path: Path) -> None:
    spark("4.2.1")
    check = _check()
    assert check.verdict is Verdict.OK and "4.2.0 for Spark 4.2.1: the first driver" in check.text
    assert {method for method, _ in repository.asked} == {"HEAD"} and not connector.folder().exists()
    connector.fetch(connector.choose("4.2.1"), {})
    assert _check().text.endswith(f"in {connector.folder()}")
    for version, verdict in (("4.2.0", Verdict.OK), ("4.1.3", Verdict.WARNING)):
        jar = tmp_path / f"spark-sql-kafka-0-10_2.13-{version}.jar"
        jar.touch()
        found = _check(jars=[str(jar)])
        assert found.verdict is verdict and version in found.text
        package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"
        assert _check(conf={"spark.jars.packages": package}).verdict is verdict
    spark("4.9.0")
    assert _check().verdict is Verdict.WARNING


def test_doctor_tells_what_is_lacking(repository: Repository, spark: Any) -> None:
    spark("4.2.1")
    repository.answers.clear()
    assert (_check().verdict, _check(needs_connector=True).verdict) == (Verdict.WARNING, Verdict.PROBLEM)
    assert "status 404" in _check().text and "spark_jars" in _check().remedy
    spark("3.5.0")
    assert "Spark 3.5.0" in _check(needs_connector=True).text
