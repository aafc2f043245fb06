"""An archive of the classes that Spark drivers load: the JVM maps it instead of loading and verifying each class.

Loading classes is half of a short driver's time (docs/performance.md). Drivers use the archive that fits their Java
and Spark, if there is one (`find`). The JVM checks again whether it fits, and continues without it if not.
`airflow_ft.spark.task.warm_up` creates one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
NONE = "none for this Java and Spark (`airflow ft class-archive` creates one, so that Spark starts faster)"
DUMP = "-XX:ArchiveClassesAtExit"
"""The option of a JVM that writes an archive at its end."""
_USE = "-XX:SharedArchiveFile"

log = logging.getLogger(__name__)


def java() -> Path | None:
    """The Java program that spark-submit starts: of $JAVA_HOME, else of the PATH."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "java") if home else shutil.which("java")
    return Path(found) if found else None


def find(folder: str, spark: Path) -> Path | None:
    """The archive for this machine's Java and the Spark in `spark`; None where there is none, or no `folder`."""
    try:
        file = path_of(folder, spark) if folder else None
        return file if file is not None and _is_trusted(file) else None
    except (OSError, UnicodeDecodeError):  # there is none, or it is not for this user: drivers do without
        return None


def options(folder: str, spark: Path, conf: Mapping[str, str]) -> str:
    """The options of the driver's JVM that use the archive; "" where there is none, or one is being made."""
    found = find(folder, spark)
    return f"{_USE}={found}" if found and DUMP not in conf.get(JAVA_OPTIONS, "") else ""


def mention(folder: str, java_options: str) -> None:
    """Log the benefit of an archive when a JVM's options name none. Does nothing without `folder`."""
    if folder and _USE not in java_options:
        log.info("class archive: %s", NONE)


def path_of(folder: str, spark: Path) -> Path | None:
    """Return the archive's path, named by what it depends on: the build of Java, and the jars of Spark. None without
    Java.
    """
    program = java()
    if program is None:
        return None
    real = program.resolve()
    release, jars = real.parents[1] / "release", spark / "jars"
    known = [str(real), str(jars)]
    known += [release.read_text()] if release.is_file() else []
    known += [f"{jar.name} {jar.stat().st_size}" for jar in sorted(jars.glob("*.jar"))]
    return Path(folder) / f"spark-{hashlib.sha256(chr(0).join(known).encode()).hexdigest()[:16]}.jsa"


def _is_trusted(file: Path) -> bool:
    """Return whether only this user or root can write the file: the JVM trusts its content as verified."""
    found = file.stat()
    return found.st_uid in (0, os.getuid()) and not found.st_mode & 0o022
