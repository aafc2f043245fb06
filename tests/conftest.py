"""Fixtures for all tests: real servers, started when the first test asks for them and stopped at the end.

A server that cannot be started fails the test. Skipped are only tests of `versitygw` and pypaimon where they are not
installed.

| fixture | scope | gives |
| --- | --- | --- |
| `mariadb`, `mysql`, `postgres`, `kafka`, `hdfs`, `s3`, `iceberg_rest` | session | the shared one (`tools.servers`) |
| `hbase`, `hive`, `hive3`, `redis_server`, `cassandra_server` | session | the same |
| `paimon` | session | pypaimon, another program that reads and writes Paimon tables (`tools.paimon`) |
| `any_mysql` | session | MariaDB, then MySQL: the test runs twice |
| `mariadb_database`, `mysql_database`, `any_mysql_database`, `postgres_database` | function | a fresh `Database` |
| `topic_factory`, `topic` | function | creates Kafka topics under random names; one such name |
| `versitygw` | session | the same; skipped where it is not built |
| `hive_s3`, `s3_keys` | session, function | a metastore that reaches `versitygw`, and its keys in the environment |
| `own_server` | function | `own_server(MariaDb, log_bin="on")`: a server of this test alone, to be killed |
"""

import gc
import logging
import os
import shutil
import sys
import uuid
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from tests import units
from tests.disks import in_memory
from tests.tiers import Tiers, add_options
from tools import class_archive
from tools.paimon import Paimon, is_installed
from tools.servers import (
    S3,
    Cassandra,
    Database,
    HBase,
    Hdfs,
    Hive,
    Hive3,
    IcebergRest,
    Kafka,
    MariaDb,
    MySql,
    Postgres,
    Redis,
    Server,
    VersityGw,
)
from tools.servers.base import local_folder
from tools.servers.hive import s3a
from tools.servers.versitygw import PROGRAM

_run = local_folder() / "run" / f"tests-{os.getpid()}"

S = TypeVar("S", bound=Server)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)
    units.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    # A forked test must not collect what it inherits: to destroy a client of librdkafka there is a segmentation fault.
    os.register_at_fork(after_in_child=gc.freeze)
    # Python workers of Spark would else take the first python3 of the PATH, which has none of the packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # A JVM of a test lives for seconds: the quick compiler is enough. spark-submit, the program that puts its command
    # together, and the brokers of tools/servers.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", class_archive.options("spark"))
    os.environ.setdefault("KAFKA_OPTS", class_archive.options("kafka"))
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", class_archive.QUICK)
    for folder in _run.parent.glob("tests-*"):  # of a run that was killed
        if not Path(f"/proc/{folder.name.removeprefix('tests-')}").exists():
            shutil.rmtree(folder, ignore_errors=True)
    # Airflow creates its home when it is imported: never that of whoever runs the tests.
    home = _run / "airflow"
    home.mkdir(parents=True, exist_ok=True)
    os.environ["AIRFLOW_HOME"] = str(home)
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ["DEFAULT_ARTIFACT_REPOSITORY"] = _maven_repository().as_uri()
    config.pluginmanager.register(FailuresAtOnce(config))
    config.pluginmanager.register(units.Placed())
    if config.getoption("--unit"):
        config.pluginmanager.register(units.UnitTests(_run / "instead of servers"))
    config.pluginmanager.register(Tiers(config))


def _maven_repository() -> Path:
    """Where tests find Spark's Kafka connector and S3A: no test asks Maven Central."""
    from airflow_ft.spark.session.connector import choose
    from airflow_ft.spark.session.s3a import FILES

    folder = _run / "maven2"
    for name, jars in (("spark", choose("4.2.0").jars), ("s3a", FILES)):
        for jar in jars:
            (folder / jar.path).parent.mkdir(parents=True, exist_ok=True)
            (folder / jar.path).symlink_to(local_folder() / "jars" / name / jar.file)
    return folder


def pytest_unconfigure(config: pytest.Config) -> None:
    logging.raiseExceptions = False  # of what is collected from here on: pytest has closed the streams
    # kafka-python leaves the socket of a refused connection to the garbage collector.
    warnings.filterwarnings("ignore", r"unclosed <socket.*laddr=\('0\.0\.0\.0'", ResourceWarning)
    shutil.rmtree(_run, ignore_errors=True)


class FailuresAtOnce:
    """Tells a failure when it happens, in a few lines: a long run may be watched, or cut off."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")  # a worker of xdist has none
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = f"{crash.path}:{crash.lineno}: {crash.message[:1000]}" if crash else report.longreprtext[-1000:]
            terminal.write_line(f"\nFAILED in {report.when}: {report.nodeid}\n{reason}")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What is imported and collected stays to the end: to look for garbage in it takes a third of this time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        if session.config.getoption("--unit"):  # elsewhere garbage holds connections, of which servers have few
            gc.set_threshold(50_000, 20, 20)  # the default takes a twelfth of the time
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses a server is marked so."""
    for item in items:
        if units.SERVERS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.server)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the end of what was logged, and the last words of a server that had died by then."""
    report = yield
    if report.failed:
        report.sections = [(title, _end(text)) for title, text in report.sections]
        for log in _run.glob("servers/*/log"):
            if "got signal" in (words := log.read_text(errors="replace")):  # MariaDB and MySQL say so when they crash
                report.sections.append((f"log of {log.parent.name}", words[words.rindex("got signal") - 200 :][:6000]))
    return report


def _end(text: str, lines: int = 60) -> str:
    kept = text.splitlines()
    return text if len(kept) <= lines else "\n".join([f"[{len(kept) - lines} lines left out]", *kept[-lines:]])


@pytest.fixture(scope="session", autouse=True)
def _seeded_defect() -> Iterator[None]:
    """A rule of the product is switched off when `make seeded` asks for it: which tests notice?"""
    if "AIRFLOW_FT_SEEDED_DEFECT" in os.environ:
        from tests.seeded import seeded

        with seeded():
            yield
    else:
        yield


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The folder of the test. That of a unit test is in memory, unless it is marked `disk`."""
    if not units.in_unit_folder(request.path) or request.node.get_closest_marker("disk"):
        yield request.getfixturevalue("tmp_path")
        return
    with in_memory() as folder:
        yield folder


@pytest.fixture(scope="session")
def servers_folder() -> Path:
    """The folder that all servers of this run have their data in; removed at the end."""
    folder = _run / "servers"
    folder.mkdir()
    return folder


def shared(kind: type[S], **given: Any) -> Any:
    """Return the fixture of a server for all tests."""

    @pytest.fixture(scope="session")
    def start(servers_folder: Path) -> Iterator[S]:
        with kind(servers_folder / kind.name, **given) as server:
            yield server

    return start


mariadb, mysql, postgres = shared(MariaDb), shared(MySql), shared(Postgres)
kafka, moto, iceberg_rest = shared(Kafka), shared(S3), shared(IcebergRest)
hbase, cassandra_server = shared(HBase), shared(Cassandra)
hive, hive3 = shared(Hive), shared(Hive3)
redis_server = shared(Redis, options={"appendfsync": "always"})


@pytest.fixture(scope="session")
def built_versitygw() -> None:
    """Skips where the server was not built, which needs Go."""
    if not (local_folder() / PROGRAM).exists():
        pytest.skip("versitygw is not built: run tools/bootstrap.sh versitygw, which needs Go")


@pytest.fixture(scope="session")
def versitygw(built_versitygw: None, servers_folder: Path) -> Iterator[VersityGw]:
    with VersityGw(servers_folder / "versitygw") as server:
        yield server


@pytest.fixture(scope="session")
def hive_s3(versitygw: VersityGw, servers_folder: Path) -> Iterator[Hive]:
    with Hive(servers_folder / "hive-s3", options=s3a(versitygw)) as server:
        yield server


@pytest.fixture(scope="session")
def s3(request: pytest.FixtureRequest) -> S3 | VersityGw:
    """The store of tables and files: with --all versitygw where it is built, because moto takes minutes for a test."""
    built = request.config.getoption("--all") and (local_folder() / PROGRAM).exists()
    found: S3 | VersityGw = request.getfixturevalue("versitygw" if built else "moto")
    return found


@pytest.fixture
def s3_keys(versitygw: VersityGw, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The keys of the store in the environment, also of processes that a test starts."""
    from airflow_ft.clients import buckets

    keys = {
        "AWS_ACCESS_KEY_ID": versitygw.login,
        "AWS_SECRET_ACCESS_KEY": versitygw.password,
        "AWS_REGION": versitygw.region,
        "AWS_ENDPOINT_URL": versitygw.url,
    }
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    buckets.forget()
    yield
    buckets.forget()


@pytest.fixture(scope="session")
def hdfs(servers_folder: Path) -> Iterator[Hdfs]:
    with Hdfs(servers_folder / "hdfs") as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_USER_NAME", server.user)
        yield server


@pytest.fixture(scope="session")
def paimon() -> Iterator[Paimon]:
    if not is_installed():
        pytest.skip("pypaimon is not installed: run tools/bootstrap.sh paimon")
    with Paimon() as program:
        yield program


@pytest.fixture(scope="session", params=["mariadb", "mysql"])
def any_mysql(request: pytest.FixtureRequest) -> MariaDb | MySql:
    server: MariaDb | MySql = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def mariadb_database(mariadb: MariaDb) -> Iterator[Database]:
    with Database.fresh(mariadb) as database:
        yield database


@pytest.fixture
def mysql_database(mysql: MySql) -> Iterator[Database]:
    with Database.fresh(mysql) as database:
        yield database


@pytest.fixture
def any_mysql_database(any_mysql: MariaDb | MySql) -> Iterator[Database]:
    with Database.fresh(any_mysql) as database:
        yield database


@pytest.fixture
def postgres_database(postgres: Postgres) -> Iterator[Database]:
    with Database.fresh(postgres) as database:
        yield database


class TopicFactory(Protocol):
    """Creates a topic under a random name, which it returns, unless there is a `name`."""

    def __call__(self, partitions: int = 4, config: Mapping[str, str] | None = None, name: str = "") -> str: ...


@pytest.fixture
def topic_factory(kafka: Kafka) -> Iterator[TopicFactory]:
    if not kafka.running:  # a test killed it
        kafka.start()
    created: list[str] = []

    def create(partitions: int = 4, config: Mapping[str, str] | None = None, name: str = "") -> str:
        name = name or f"t-{uuid.uuid4().hex[:12]}"
        kafka.create_topic(name, partitions, config)
        created.append(name)
        return name

    yield create
    if not kafka.running:
        kafka.start()
    for name in created:
        kafka.delete_topic(name)


@pytest.fixture
def topic(topic_factory: TopicFactory) -> str:
    return topic_factory()


@pytest.fixture
def own_server(servers_folder: Path) -> Iterator[Callable[..., Any]]:
    """Start a server for this test alone; its options are keyword arguments (dots as in Kafka: `**{"a.b": 1}`)."""
    started: list[Server] = []

    def start(kind: type[S], **options: str | int) -> S:
        server = kind(servers_folder / f"{kind.name}-{uuid.uuid4().hex[:8]}", options=options)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)
