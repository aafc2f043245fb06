"""Say why a driver ended before it reported a result: by what Spark prints for common causes, and by its exit code."""

from __future__ import annotations

import re
import signal
from typing import Any

_CAUSES = (
    (
        re.compile(r"unresolved dependency: ([\w.-]+)#([\w.-]+);([\w.-]+)"),
        "dependency_unreachable",
        "Spark could not fetch {0}:{1}:{2} from its Maven repositories",
        "Check that this version exists and that the task's machine reaches the repositories (spark.jars.repositories"
        " names others). Or put the jars into a folder and name it in [airflow_ft] spark_jars or in jars= of the"
        " pipeline.",
    ),
    (
        re.compile(r"JAVA_HOME is not set|/java: (?:No such file|cannot execute|Permission denied)"),
        "java_unfit",
        "this machine has no Java, or JAVA_HOME is wrong",
        "Install a JDK 17 (Debian, Ubuntu: openjdk-17-jre-headless), or set JAVA_HOME for Airflow's workers.",
    ),
    (
        re.compile(r"(Invalid \w+ heap size: .+|Unrecognized (?:VM )?option:? .+)"),
        "java_unfit",
        "Java refuses its settings: {0}",
        "Correct spark.driver.memory (such as 2g) or spark.driver.extraJavaOptions in spark_conf.",
    ),
    (
        re.compile(r"UnsupportedClassVersionError"),
        "java_unfit",
        "this machine's Java is too old for Spark",
        "Install a JDK 17. If there are several, set JAVA_HOME for Airflow's workers.",
    ),
    (
        re.compile(r"java\.lang\.OutOfMemoryError|There is insufficient memory for the Java Runtime"),
        "out_of_memory",
        "the driver's JVM ran out of memory",
        "Raise spark.driver.memory in spark_conf, or make the micro-batch smaller (max_offsets_per_trigger,"
        " max_files_per_trigger, max_bytes_per_trigger).",
    ),
)


class Symptoms:
    """Look at a driver's lines. The first one that shows a cause sets `code`, `what` and `remedy`."""

    def __init__(self) -> None:
        self.survived()

    def survived(self) -> None:
        """Forget a cause: the driver works on, so it will not end of that."""
        self.code = self.what = self.remedy = ""

    def look(self, line: str) -> None:
        """Take a line into account."""
        if self.what:
            return
        for pattern, code, what, remedy in _CAUSES:
            if found := pattern.search(line):
                self.code, self.what, self.remedy = code, what.format(*found.groups()), remedy
                return


def _how_it_ended(code: int, *, was_killed: bool = False) -> tuple[str, dict[str, Any]]:
    """Return how a process ended, for people and as fields of an error. `was_killed`: on request.

    `code`: the exit code; negative: the signal.
    """
    number = -code if code < 0 else code - 128
    fields: dict[str, Any] = {"exit_code": code}
    try:
        name = fields["signal"] = signal.Signals(number).name
    except ValueError:
        return f"ended with exit code {code} before it reported a result", fields
    if was_killed:
        return "was stopped on request", fields
    how = f"was killed by {name}"
    return how + (" (perhaps the machine is out of memory)" if number == signal.SIGKILL else ""), fields


def driver_died(driver: str, code: int, symptoms: Symptoms, remedy: str, *, was_killed: bool = False) -> dict[str, Any]:
    """Return the StageError of a driver's death as plain data. `remedy`: used if its output names no better one."""
    how, fields = _how_it_ended(code, was_killed=was_killed)
    return {
        "type": "StageError",
        "what": f"{driver} {how}" + (f": {symptoms.what}." if symptoms.what else "."),
        "code": symptoms.code or "driver_ended",
        "fields": fields,
        "remedy": symptoms.remedy or remedy,
    }
