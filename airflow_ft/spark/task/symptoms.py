"""Recognise why a driver ended before it reported a result: what Spark prints for the common causes, with a fix."""

from __future__ import annotations

import re

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

    code = ""
    what = ""
    remedy = ""

    def look(self, line: str) -> None:
        """Takes a line into account."""
        if self.what:
            return
        for pattern, code, what, remedy in _CAUSES:
            if found := pattern.search(line):
                self.code, self.what, self.remedy = code, what.format(*found.groups()), remedy
                return
