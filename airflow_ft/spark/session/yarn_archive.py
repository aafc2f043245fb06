"""Spark's jars as one archive on HDFS, which YARN's machines fetch once. Without it each run uploads them.

The archive's name has the checksum of its contents, and it appears under that name as a whole. So nothing replaces an
archive that applications use, and the same jars are uploaded once.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.spark.session.connector import spark_version
from airflow_ft.wal.hdfs import HdfsFileSystem

ARCHIVE = "spark.yarn.archive"
_NAME = re.compile(r"spark-(.+)-[0-9a-f]{16}\.zip")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first one that a zip file can have
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class YarnArchive:
    """An archive on HDFS. `uploaded`: it was not there before. `bytes`: of its jars."""

    uri: str
    jars: int
    bytes: int
    uploaded: bool


def upload(home: Path, folder: str) -> YarnArchive:
    """Put the jars of the Spark in `home` into a folder on HDFS, unless they are there.

    Raises:
        ConfigurationError: `path_invalid`: the folder is not on HDFS. `spark_unfit`: no jars.
        StorageUnavailableError: HDFS does not answer, or refuses.
    """
    files = HdfsFileSystem()
    if not folder.startswith("hdfs://"):
        raise ConfigurationError(
            f"{folder!r} is not on HDFS, where YARN's machines look for the archive.",
            code="path_invalid",
            remedy="Give --to hdfs://NAMENODE:PORT/FOLDER.",
            path=folder,
        )
    version = spark_version(home)
    jars = sorted(home.glob("jars/*.jar"))
    uri = files.uri(folder, f"spark-{version}-{_digest(jars)[:16]}.zip")
    total = sum(jar.stat().st_size for jar in jars)
    uploaded = not files.seen(uri) and files.publish(uri, lambda file: _write(jars, file))
    return YarnArchive(uri, len(jars), total, uploaded)


def archived_version(archive: str) -> str:
    """Return the version of Spark in an archive that `upload` has named; "": another archive, or none."""
    match = _NAME.fullmatch(archive.rpartition("/")[2])
    return match[1] if match else ""


def _digest(jars: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for jar in jars:
        with jar.open("rb") as file:
            digest.update(f"{jar.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def _write(jars: Sequence[Path], target: BinaryIO) -> None:
    """Jars are compressed already. Hadoop unpacks a stream, in which an entry can only be of the kind `deflated`."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=0) as archive:
        for jar in jars:
            entry = zipfile.ZipInfo(jar.name, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            entry.file_size = jar.stat().st_size
            with jar.open("rb") as source, archive.open(entry, "w") as into:
                while chunk := source.read(_CHUNK):
                    into.write(chunk)
