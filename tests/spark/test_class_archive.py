"""The archive of classes: which one a driver gets, and one that is really made and used."""

import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.sources import FileSource
from airflow_ft.spark.process import Driver
from airflow_ft.spark.session import class_archive
from airflow_ft.spark.session.submit import environment, spark_home
from airflow_ft.spark.task import warm_up
from airflow_ft.spark.task.doctor import examine_spark
from tests.class_archives import QUICK
from tests.integration.stage_world import StageWorld
from tests.raising import raises


@pytest.fixture
def world(tmp_path: Path) -> StageWorld:
    return StageWorld(tmp_path)


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java home whose `java` does nothing."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 0\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text('JAVA_RUNTIME_VERSION="21.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    return home


def an_archive(folder: Path) -> Path:
    """Something that stands where an archive for this Java and this Spark is looked for."""
    file = class_archive.path_of(str(folder), spark_home())
    assert file is not None
    folder.mkdir(exist_ok=True)
    file.write_bytes(b"")
    return file


def test_only_the_archive_of_this_java_and_this_spark_is_used(java: Path, tmp_path: Path) -> None:
    folder = tmp_path / "archives"
    assert class_archive.options(str(folder), spark_home(), {}) == ""
    file = an_archive(folder)
    assert class_archive.options(str(folder), spark_home(), {}) == f"-XX:SharedArchiveFile={file}"
    assert class_archive.options("", spark_home(), {}) == ""
    (java / "release").write_text('JAVA_RUNTIME_VERSION="21.0.2"\n')
    assert class_archive.options(str(folder), spark_home(), {}) == ""
    an_archive(folder)
    other = tmp_path / "spark"
    (other / "jars").mkdir(parents=True)
    assert class_archive.find(str(folder), other) is None


def test_what_the_user_says_goes_behind_it(world: StageWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:SharedArchiveFile=/mine.jsa")
    file = an_archive(tmp_path / "archives")
    request = world.request("stage_jobs:Static", class_archives=str(file.parent))
    options = environment(request)["SPARK_SUBMIT_OPTS"].split()
    assert options[-2:] == [f"-XX:SharedArchiveFile={file}", "-XX:SharedArchiveFile=/mine.jsa"]


@pytest.mark.slow
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("keep_session", [0.0, 60.0])
def test_a_driver_that_starts_without_one_says_what_it_would_bring(
    world: StageWorld,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    keep_session: float,
) -> None:
    folder = str(tmp_path / "archives")

    def told() -> list[str]:
        caplog.clear()
        with pytest.raises(StageError):  # its Java starts nothing
            world.stage(world.request("stage_jobs:Static", class_archives=folder, keep_session=keep_session))
        return [message for message in caplog.messages if "class archive" in message]

    caplog.set_level(logging.INFO, "airflow_ft")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", QUICK)  # without the tests' own archive
    assert told() == [f"class archive: {class_archive.NONE}"]
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:SharedArchiveFile=/mine.jsa")
    assert told() == []
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", QUICK)
    an_archive(tmp_path / "archives")
    assert told() == []


def test_the_doctor_tells_of_it(tmp_path: Path) -> None:
    def told() -> str:
        return next(check.text for check in examine_spark("", [], str(tmp_path)) if check.name == "class archive")

    assert "airflow ft class-archive" in told()
    assert str(an_archive(tmp_path)) == told()


def test_where_none_can_be_made_the_reason_is_told(java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(folder: str) -> None:
        warm_up.make(folder, spark_home(), {}, [], lambda _: None)

    with raises(ConfigurationError, "path_invalid"):
        make(f"{tmp_path}/my archives")
    (tmp_path / "file").touch()
    with raises(ConfigurationError, "folder_not_writable", path=f"{tmp_path}/file/archives"):
        make(f"{tmp_path}/file/archives")
    with raises(StageError, "driver_ended"):
        make(f"{tmp_path}/archives")  # its Java starts nothing
    assert not list((tmp_path / "archives").iterdir())
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", "")
    with raises(ConfigurationError, "java_unfit"):
        make(str(tmp_path))


@pytest.mark.release
@pytest.mark.slow
def test_a_driver_maps_the_archive_that_was_made(
    world: StageWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", QUICK)  # the tests' own archive would go before it
    lines: list[str] = []
    file = warm_up.make(str(tmp_path / "archives"), spark_home(), {}, [], lines.append)
    assert file.stat().st_size > 20 << 20, lines
    assert list(file.parent.iterdir()) == [file]
    mapped: list[int] = []

    def look(driver: Driver) -> None:
        """At the JVM: the first of the driver's group that has the archive among its mappings."""

        def search() -> None:
            deadline = time.monotonic() + 60
            while not mapped and time.monotonic() < deadline:
                for process in Path("/proc").glob("[0-9]*"):
                    with suppress(OSError, ProcessLookupError):
                        if os.getpgid(int(process.name)) == driver.pid and str(file) in (process / "maps").read_text():
                            mapped.append(int(process.name))
                time.sleep(0.05)

        threading.Thread(target=search, daemon=True).start()

    world.add_file("one", [{"k": "a", "n": 1}])
    source = FileSource(path=str(world.input), schema="k string, n bigint")
    world.stage(world.request("stage_jobs:Plain", {"numbers": source}, class_archives=str(file.parent)), look)
    assert mapped
    assert len(world.all_rows()) == 1
