"""What Hadoop and Spark do with files on a local path, and where they are left as they are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.spark.driver import local_files
from airflow_ft.spark.driver.local_files import MANAGER, spare_processes
from tests.raising import raises

HIVES = "org.apache.hadoop.hive.ql.io.ProxyLocalFileSystem"
CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of its own; the JVM writes checksums as before in the end."""
    yield spark.newSession()
    _hadoop(spark, "/").setWriteChecksum(True)


def _hadoop(spark: SparkSession, path: object) -> Any:
    """Hadoop's file system of a local path, as Spark gets it."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    return jvm.org.apache.hadoop.fs.Path(f"file://{path}").getFileSystem(conf)


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _write(manager: Any, spark: SparkSession, path: Path, text: str) -> None:
    """As Spark's logs and state are written."""
    jvm: Any = spark._jvm
    stream = manager.createAtomic(jvm.org.apache.hadoop.fs.Path(f"file://{path}"), True)
    stream.write(text.encode())
    stream.close()


def _read(spark: SparkSession, path: Path) -> str:
    """As Hadoop reads it: with the checksums, where there are any."""
    jvm: Any = spark._jvm
    stream = _hadoop(spark, path).open(jvm.org.apache.hadoop.fs.Path(f"file://{path}"))
    return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))


def _manager(spark: SparkSession, path: Path) -> Any:
    """As a query of this session has it for its location."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    where = jvm.org.apache.hadoop.fs.Path(f"file://{path}")
    return getattr(jvm, f"{CHECKPOINTING}.CheckpointFileManager").create(where, conf)


@pytest.mark.parametrize("root", ["/tmp/wal", "file:///tmp/wal"])
def test_a_session_writes_no_checksum_files_to_a_local_path(session: SparkSession, tmp_path: Path, root: str) -> None:
    session.range(3).write.parquet(f"file://{tmp_path}/before")
    assert any(name.endswith(".crc") for name in _names(tmp_path / "before"))
    spare_processes(session, root)
    session.range(3).write.parquet(f"file://{tmp_path}/after")
    assert not any(name.endswith(".crc") for name in _names(tmp_path / "after"))
    assert session.conf.get(MANAGER) == f"{CHECKPOINTING}.FileSystemBasedCheckpointFileManager"
    assert session.newSession().conf.get(MANAGER, "") == "", "it is the setting of one run"


def test_a_file_replaces_one_with_a_checksum_and_vice_versa(session: SparkSession, tmp_path: Path) -> None:
    """As when another manager writes to the location, or has: a stale checksum would make it unreadable."""
    file, by_context = tmp_path / "7.delta", _manager(session, tmp_path)
    assert by_context.getClass().getSimpleName() == "FileContextBasedCheckpointFileManager"
    _write(by_context, session, file, "first")
    assert _names(tmp_path) == {"7.delta", ".7.delta.crc"}
    (tmp_path / "linked").hardlink_to(file)

    spare_processes(session, str(tmp_path))
    assert _read(session, file) == "first"
    by_system = _manager(session, tmp_path)
    _write(by_system, session, file, "second")
    assert _names(tmp_path) == {"7.delta", "linked"}
    assert _read(session, file) == "second"
    assert (tmp_path / "linked").read_text() == "first", "a copy of the location shares the file that was there"

    _write(by_context, session, file, "third")
    assert _names(tmp_path) == {"7.delta", ".7.delta.crc", "linked"}
    assert _read(session, file) == "third"


@pytest.mark.parametrize("settings", ["spark.sql", "hadoop"])
def test_a_manager_that_the_user_has_named_stays(session: SparkSession, tmp_path: Path, settings: str) -> None:
    named = f"{CHECKPOINTING}.FileContextBasedCheckpointFileManager"
    if settings == "hadoop":
        conf = session.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
        conf.set(MANAGER, named)  # as of spark.hadoop.*
    else:
        conf = session.conf
        conf.set(MANAGER, named)
    try:
        spare_processes(session, str(tmp_path))
        assert _manager(session, tmp_path).getClass().getName() == named
    finally:
        conf.unset(MANAGER)


@pytest.mark.parametrize("other", ["org.apache.hadoop.fs.RawLocalFileSystem", HIVES])
def test_where_hadoop_has_another_file_system_everything_stays(
    session: SparkSession, tmp_path: Path, other: str
) -> None:
    """Hive's is what a session has by itself, since its jar is there: it would keep the file that is to be replaced."""
    session.conf.set("fs.file.impl.disable.cache", "true")
    session.conf.set("fs.file.impl", other)
    spare_processes(session, str(tmp_path))
    assert session.conf.get(MANAGER, "") == ""
    session.newSession().range(3).write.parquet(f"file://{tmp_path}/rows")
    assert any(name.endswith(".crc") for name in _names(tmp_path / "rows"))


@pytest.mark.parametrize(
    ("other", "manager", "is_refused"),
    [
        (HIVES, "FileSystemBasedCheckpointFileManager", True),
        (HIVES, "FileContextBasedCheckpointFileManager", False),
        ("org.apache.hadoop.fs.RawLocalFileSystem", "FileSystemBasedCheckpointFileManager", False),
        ("org.apache.hadoop.fs.LocalFileSystem", "FileSystemBasedCheckpointFileManager", False),
    ],
)
def test_a_file_is_kept_by_no_manager_that_is_to_replace_it(
    session: SparkSession, tmp_path: Path, other: str, manager: str, is_refused: bool
) -> None:
    """Who has named both gets an answer before anything is computed; the others do replace it."""
    session.conf.set("fs.file.impl.disable.cache", "true")
    session.conf.set("fs.file.impl", other)
    session.conf.set(MANAGER, f"{CHECKPOINTING}.{manager}")
    if is_refused:
        named = {"setting": MANAGER, "value": f"{CHECKPOINTING}.{manager}", "file_system": HIVES}
        with raises(ConfigurationError, "spark_setting_unsafe", **named) as caught:
            spare_processes(session, str(tmp_path))
        assert caught.error and MANAGER in caught.error.remedy
    else:
        spare_processes(session, str(tmp_path))
    named, file = _manager(session, tmp_path), tmp_path / "7.delta"
    _write(named, session, file, "first")
    _write(named, session, file, "second")
    assert _read(session, file) == ("first" if is_refused else "second")


def test_without_such_a_manager_spark_chooses_its_own(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files, "_PACKAGES", ("org.apache.spark.sql.elsewhere",))
    spare_processes(session, str(tmp_path))
    assert session.conf.get(MANAGER, "") == ""
