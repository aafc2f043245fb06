"""Why a driver ended before it could report: what Spark prints of the common causes, and what to do about each."""

from __future__ import annotations

import re

_CAUSES = (
    (
        re.compile(r"unresolved dependency: ([\w.-]+)#([\w.-]+);([\w.-]+)"),
        "Spark could not fetch {0}:{1}:{2} from its Maven repositories",
        "see that there is such a version, and that the task's machine reaches them (spark.jars.repositories names"
        " others); or put the jars into a folder and name it in [airflow_ft] spark_jars, or in jars= of the pipeline.",
    ),
    (
        re.compile(r"JAVA_HOME is not set|/java: (?:No such file|cannot execute|Permission denied)"),
        "there is no Java on this machine, or JAVA_HOME is wrong",
        "install a JDK 17 (Debian, Ubuntu: openjdk-17-jre-headless), or set JAVA_HOME for Airflow's workers.",
    ),
    (
        re.compile(r"(Invalid \w+ heap size: .+|Unrecognized (?:VM )?option:? .+)"),
        "Java does not take its settings: {0}",
        "mend spark.driver.memory (such as 2g) or spark.driver.extraJavaOptions in spark_conf.",
    ),
    (
        re.compile(r"UnsupportedClassVersionError"),
        "this machine's Java is too old for Spark",
        "install a JDK 17, and set JAVA_HOME for Airflow's workers if there are several.",
    ),
    (
        re.compile(r"java\.lang\.OutOfMemoryError|There is insufficient memory for the Java Runtime"),
        "the driver's JVM was out of memory",
        "raise spark.driver.memory in spark_conf, or make the micro-batch smaller (max_offsets_per_trigger,"
        " max_files_per_trigger, max_bytes_per_trigger).",
    ),
)


class Symptoms:
    """Looks at a driver's lines; `what` and `remedy` are set by the first one that tells a cause."""

    what = ""
    remedy = ""

    def look(self, line: str) -> None:
        """Takes a line into account."""
        if self.what:
            return
        for pattern, what, remedy in _CAUSES:
            if found := pattern.search(line):
                self.what, self.remedy = what.format(*found.groups()), remedy
                return
