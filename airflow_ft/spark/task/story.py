"""Select the relevant lines of a driver's output; the rest is for debugging (level DEBUG of `airflow_ft.spark`).

Dropped are lines that Spark prints in every run and that need no action (`_USUAL`), and warnings of libraries about
each other. Within errors the frames of Java and of Spark's Python are dropped, and repeated lines. Unknown lines are
always shown, and so is every line of an error or a warning the first time.
"""

from __future__ import annotations

import re

_USUAL = re.compile(
    r"WARNING: Using incubator modules"
    r"|Using Spark's default log4j profile"
    r"|Setting Spark log level to "
    r"|airflow_ft\.spark\.driver\.failures\.InUserCode\b"  # repeats the exception of the job above it
    r'|\{"ts": .*"logger": "\w*QueryContextLogger"'  # of an error, which follows: 10 KB of JSON in a line
    r"|(Starting )?Streaming TransformWithState\w* Python worker"
    r"|\S+ \S+ (INFO|WARN) ("
    r"SparkContext: (Running Spark version|OS info|Java version)"
    r"|Utils: (Your hostname, .* resolves to a loopback|Set SPARK_LOCAL_IP)"
    r"|NativeCodeLoader: Unable to load native-hadoop"
    r"|SparkConf: Note that spark\.local\.dir will be overridden"
    r"|ResolveWriteToStream: spark\.sql\.adaptive\.enabled is not supported"
    r"|MicroBatchExecution: Disabling AQE since"
    r"|MapPartitionsRDD: RDD \d+ was locally checkpointed"
    r"|StateStore: Loaded state store provider"
    r"|TransformWithStateInPySparkStateServer: (No more data to read|.* state \S+ doesn't contain)"
    r"|(AdminClient|Consumer)Config: These configurations .* were supplied but"
    r"|KafkaDataConsumer: KafkaDataConsumer is not running in UninterruptibleThread"
    r"|ProcessingTimeExecutor: Current batch is falling behind"  # a stream reports its latency
    r"|FairSchedulableBuilder: .*A job was submitted with scheduler pool"  # a group of streams makes its pools by use
    r"|DAGScheduler: Failed to cancel job group \S+ Cannot find active jobs)"
)
_OF_LIBRARIES = re.compile(
    r"\S*(/(site|dist)-packages/|pyspark\.zip/)\S+:\d+: (Future|Deprecation|PendingDeprecation|User|Runtime)Warning:"
)
_JAVA_FRAME = re.compile(r"\s+at [\w.$/<>@-]+\(.*\)$|\s+\.\.\. \d+ more$")
_PYTHON_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line \d+, in ')
_FRAMEWORK = ("/pyspark/", "/py4j/", "pyspark.zip/", "py4j-", "/airflow_ft/spark/")
_MARKER = re.compile(r"\s+[~^ ]+$")
_ERROR = re.compile(
    r"Caused by: |Traceback \(most recent|During handling|The above exception|[\w.$]+(Error|Exception)\b|Driver stack"
)
_HEADER = re.compile(r"\S+ \S+ (WARN|ERROR) ")
_REMEMBERED = 2000


class Story:
    """Decides line by line; made for one driver."""

    def __init__(self) -> None:
        self._printed: set[str] = set()
        self._below_a_warning = self._below_a_frame = self._in_an_error = False

    def shows(self, line: str) -> bool:
        """Return whether the line is for everybody."""
        indented = line[:1].isspace()
        if self._below_a_warning and indented:  # the line of code that it is about
            return False
        self._below_a_warning = bool(_OF_LIBRARIES.match(line))
        if self._below_a_warning or not line.strip() or _USUAL.match(line) or _JAVA_FRAME.match(line):
            return False
        if frame := _PYTHON_FRAME.match(line):
            self._below_a_frame = any(part in frame["file"] for part in _FRAMEWORK)
        elif not indented:
            self._below_a_frame = False
        if self._below_a_frame:
            return False
        is_error = _ERROR.match(line) is not None
        if not indented:
            self._in_an_error = is_error or _HEADER.match(line) is not None
        if not is_error and not (indented and self._in_an_error):
            return True
        if line in self._printed or _MARKER.match(line):
            return False
        if len(self._printed) < _REMEMBERED:
            self._printed.add(line)
        return True
