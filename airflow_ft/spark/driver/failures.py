"""Sort a query's errors by their cause: JobError if a retry cannot help, StageError if it may."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from airflow_ft.protocol.errors import AirflowFtError, DataLossError, JobError, StageError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.protocol.secrets import without_secrets
from airflow_ft.spark.driver import python_errors
from airflow_ft.spark.driver.folders import other_folder
from airflow_ft.spark.state.locations import SparkLocation, lost_state
from airflow_ft.spark.state.meaning import has_lost_state
from airflow_ft.spark.state.settings import ENCODING

# Classes of SQLSTATE that Spark gives to mistakes in queries and values: data, syntax, raised by the user, Python.
_USER_STATES = ("0A", "21", "22", "23", "38", "42", "P0")
_USER_CLASSES = ("PythonException", "AnalysisException", "ParseException")
_TRACEBACK = "With AIRFLOW__LOGGING__LOGGING_LEVEL=DEBUG the log has the whole traceback."
_LOG = f"Correct the job. {_TRACEBACK}"
_OUTPUT_MODE = (
    'Set another output_mode in the job. A count or sum for each key needs "update", and a sink with strategy "upsert".'
    ' With "append", group by a window of a column with a watermark.'
)
_MOST_OF_SCHEMAS = 8_000  # characters: Spark prints the old schema, and then the new one
_ONLY_AVRO = f" Only state variables of transformWithState with {ENCODING}=avro take more or wider fields."
# The job's new operators do not fit the state that it continues with. A retry does not help.
_STATE_CHANGED = re.compile(
    r"\[((?:"
    r"STATE_STORE_(?:KEY|VALUE)_SCHEMA_NOT_COMPATIBLE|STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE"
    r"|STATE_STORE_INVALID_(?:VALUE_SCHEMA_EVOLUTION|VARIABLE_TYPE_CHANGE|CONFIG_AFTER_RESTART)"
    r"|STATE_STORE_(?:VALUE_SCHEMA_EVOLUTION|STATE_SCHEMA_FILES)_THRESHOLD_EXCEEDED"
    r"|(?:STATE_STORE_|CANNOT_LOAD_STATE_STORE\.)(?:KEY|VALUE)_ROW_FORMAT_VALIDATION_FAILURE"
    r"|(?:STREAMING_STATEFUL_OPERATOR_|STATEFUL_OPERATOR_)?(?:MISSING_STATE_DIRECTORY|NOT_MATCH_IN_STATE_METADATA)"
    r"|CANNOT_LOAD_STATE_STORE\.(?:INVALID_CHANGE_LOG_READER_VERSION|INVALID_CHECKPOINT_LINEAGE)"
    r"))\]\s*(.*?)(?:\s*If you want to force running|\s*SQLSTATE:|\n\s*at |$)",
    re.DOTALL,
)
# Spark does not say it of each, but that is why: others have no schemas beside their state.
_NO_AVRO = re.compile(r"State store encoding format as avro is not supported for operator=(\w+)")
# A folder or file to be read. Spark counts it among the mistakes in queries, and a mount may be away for a moment.
_NOT_THERE = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (.*?)\. SQLSTATE", re.DOTALL)
# The cluster ended the application, the JVM got a signal, or the job called `stop`.
_STOPPED = "SparkContext was shut down"

# A name with ':' that a pattern meets: Hadoop takes the text before it for a scheme.
_COLON = re.compile(r"(?:\S+: )*Relative path in absolute URI: (.*)", re.DOTALL)

# Folders named name=value that came after the query had begun: Spark knows its columns by then.
_NEW_FOLDERS = re.compile(r"(?:\S+: )*assertion failed: Invalid batch: ")

# Spark looks at what the newest micro-batch has read of a folder once more, and finds it below another one.
_OTHER_FOLDER = re.compile(r"(?:\w+: )*Wrong basePath (.*?) for the root path: (.*)", re.DOTALL)
# A record that does not fit its schema, and its file: one is printed below the other.
_MALFORMED = re.compile(r"\[MALFORMED_RECORD_IN_PARSING\S*\] [^\n]*|Unescaped quote character [^\n]*? of CSV field")
_HEADER = re.compile(r"(?:CSV header does not conform|Number of column in CSV header is not equal).*", re.DOTALL)
_READING = re.compile(r"while reading file (\S+?)\.?(?:\s|$)")
# Spark's condition of `raise_error`, by which `sources.files` refuses NULL in a column that is declared NOT NULL.
_RAISED = "USER_RAISED_EXCEPTION"
_MOST_CAUSES = 50
_PLAN = re.compile(r"(?<=SQLSTATE: \w{5});\n.*", re.DOTALL)  # Spark's, below what is wrong with it

# Retention was faster than the pipeline, say. Spark counts this among the user's mistakes, too.
_DATA_LOST = re.compile(
    r"Some data may have been lost because they are not available in Kafka.*?(?:Reason:\s*(.*)|$)", re.DOTALL
)


class InUserCode(Exception):
    """Wraps an exception of the job's own functions (as `__cause__`), to distinguish it from exceptions in our code."""


class _Cause(NamedTuple):
    """An error, or what has caused it in the JVM: its SQLSTATE, Spark's condition, class and message; "": none."""

    state: str
    condition: str
    kind: str
    message: str


def as_error(error: BaseException, pipeline: str, job: str, base: SparkPosition | None = None) -> AirflowFtError:
    """Return the error to report for the exception that ended the attempt, which started from `base`."""
    return _described(error, pipeline, job, base).located(pipeline=pipeline)


def _described(error: BaseException, pipeline: str, job: str, base: SparkPosition | None) -> AirflowFtError:
    in_user_code = isinstance(error, InUserCode)
    if isinstance(error, InUserCode) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, AirflowFtError):
        return error
    line = last_line(error)
    causes = list(_causes(error))
    texts = [each.message for each in causes]
    for message in texts:
        if found := _STATE_CHANGED.search(message):
            if base is not None and has_lost_state(SparkLocation.of(base)):
                return lost_state(pipeline, base.location, base.batch)
            return JobError(
                f"job {job} has changed and no longer fits its state: {found[1]}:"
                f" {short(' '.join(found[2].split()), _MOST_OF_SCHEMAS)}",
                code="state_unfit",
                remedy=f"Undo the change.{_ONLY_AVRO if 'SCHEMA' in found[1] else ''} Or run `airflow ft reset-state"
                f" {pipeline}`: it drops the state and keeps the positions. Or give the changed pipeline a new name: it"
                " then reads from the beginning.",
                condition=found[1],
            )
        if found := _NO_AVRO.search(message):
            return JobError(
                f"job {job} keeps state of {found[1]}, which Spark cannot encode as {ENCODING}=avro demands.",
                code="state_unfit",
                remedy=f"Remove {ENCODING} from spark_conf. Avro works only for a job whose whole state is state"
                " variables of transformWithState.",
                setting=ENCODING,
                operator=found[1],
            )
        if found := _DATA_LOST.match(message):
            reason = f": {short(' '.join(found[1].split()))}" if found[1] else "."
            return DataLossError(
                f"Kafka no longer has records that were not read yet{reason}",
                code="records_expired",
                remedy="Set fail_on_data_loss=False of the source for one run: it continues with the records that are"
                " left. Then set it back, and raise the topic's retention or run the pipeline more often.",
            )
        if found := _NOT_THERE.match(message):
            where = _resolved(found[1])
            given = f" (given as {found[1]})" if where != found[1] else ""
            here = f" For a folder of this machine, write file://{found[1]}." if given else ""
            return StageError(
                f"{where} does not exist{given}.",
                code="folder_missing",
                remedy="Create the folder or correct the path. If a mount is missing, mount it again: a retry then"
                f" reads it.{here}",
                path=where,
            )
        if _STOPPED in message:
            return StageError(
                "Spark was stopped while the query ran: its cluster ended the application, a signal ended its JVM, or"
                " the job called stop().",
                code="spark_stopped",
                remedy="Retry. If it happens again, read the cluster's log of the application"
                " (yarn logs -applicationId ID), and remove stop() from the job.",
            )
        if found := _COLON.match(message):
            return JobError(
                f"a source's folder has the name {short(found[1])!r}, and Hadoop cannot match a name with ':' against"
                " a pattern.",
                code="file_name_unfit",
                remedy="Rename it. Or declare the folder itself, without a pattern in its path.",
                path=short(found[1]),
            )
        if _NEW_FOLDERS.match(message):
            return StageError(
                "folders named name=value appeared in a source's folder after the query began, and they add a column.",
                code="folder_changed",
                remedy="Do nothing: the next try reads them. To avoid this, create one such folder before the first"
                " run of a pipeline.",
            )
        if found := _OTHER_FOLDER.match(message):
            return other_folder(found[1], short(found[2]))
    if malformed := _malformed(texts):
        file, what = malformed
        return JobError(
            f"job {job} cannot read {file}: {what}",
            code="file_malformed",
            remedy="Correct or remove the file. Or declare the column without NOT NULL."
            if any(each.condition == _RAISED for each in causes)
            else 'Correct or remove the file. Or keep such rows: give the source options={"mode": "PERMISSIVE",'
            ' "columnNameOfCorruptRecord": "broken"} and a column `broken string` in its schema.',
            path=file,
        )
    if header := next((found[0] for text in texts if (found := _HEADER.search(text))), None):
        return JobError(
            f"job {job} cannot read a file: {' '.join(header.split())}.",
            code="file_malformed",
            remedy="Declare the source's columns with the names of the header, in its order. Or write the file with the"
            " header that the schema declares.",
        )
    user = python_errors.of_driver(error) if in_user_code else None
    if user := user or python_errors.of_worker(texts):
        return JobError(
            f"job {job} raised {short(user.what)}{user.where}",
            code=user.code,
            remedy=user.remedy or _LOG,
            job=job,
            **user.fields,
        )
    for state, _, kind, message in causes:
        if state[:2] in _USER_STATES or kind.endswith(_USER_CLASSES):
            where = python_errors.place(error.__traceback__) if in_user_code else ""
            what = f"job {job} failed: {short(message) or line}{where}"
            remedy = _OUTPUT_MODE if "[STREAMING_OUTPUT_MODE" in message else _LOG
            return JobError(what, remedy=remedy, job=job)
    if in_user_code and len(causes) == 1 and not _is_connection(error):  # nothing in the JVM has caused it
        where = python_errors.place(error.__traceback__)
        kind = type(error).__name__
        return JobError(f"job {job} raised {line}{where}", remedy=_LOG, job=job, exception=kind)
    reading = next((f", while reading {found[1]}" for text in texts if (found := _READING.search(text))), "")
    return StageError(
        f"the Spark query failed: {short(texts[-1]) or line}{reading}",
        code="query_failed",
        remedy=f"Check the sources, the disk and the memory of the driver. {_TRACEBACK}",
    )


def _resolved(path: str) -> str:
    """A path with the file system that Hadoop's configuration gives it, where that is not this machine's."""
    from pyspark.sql import SparkSession

    try:
        spark = SparkSession.getActiveSession()
        assert spark is not None
        jvm: Any = spark.sparkContext._jvm
        root = jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(spark.sparkContext._jsc.hadoopConfiguration())
        if "://" in path or not path.startswith("/") or root.getScheme() == "file":
            return path
        return str(jvm.org.apache.hadoop.fs.Path(path).makeQualified(root, None).toString())
    except Exception:  # the JVM may be gone
        return path


def _malformed(texts: Sequence[str]) -> tuple[str, str] | None:
    """The file of a source with a record that cannot be read, and Spark's words for it."""
    file = next((found[1] for text in texts if (found := _READING.search(text))), None)
    what = next((found[0] for text in texts if (found := _MALFORMED.search(text))), None)
    if file is None or what is None:
        return None
    below = short(texts[-1]).splitlines()  # the value that is none of the column's type
    return file, f"{what} {below[0]}" if below and what not in texts[-1] else what


def messages(error: BaseException) -> list[str]:
    """Return the messages of an error, and of what caused it in the job and in the JVM."""
    found: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(found) < _MOST_CAUSES:
        found += [each.message for each in _causes(cause)]
        cause = cause.__cause__
    return found


def reason(error: BaseException) -> str:
    """Return what has caused an error first, in the JVM's words; else its last line."""
    return short(list(_causes(error))[-1].message) or last_line(error)


def last_line(error: BaseException) -> str:
    """The last line of a traceback: type and message."""
    return short("".join(traceback.format_exception_only(error)).strip())


def _is_connection(error: BaseException) -> bool:
    """The JVM is gone: nothing that a job could have done."""
    return type(error).__name__ in ("Py4JNetworkError", "Py4JError") or isinstance(error, ConnectionError)


def _causes(error: BaseException) -> Iterator[_Cause]:
    """Yield an error and what caused it in the JVM, outermost first."""
    yield _Cause(_said(error, "getSqlState"), _said(error, "getCondition"), type(error).__name__, str(error))
    java: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    for _ in range(20):
        if java is None:
            return
        kind, message = _said(java, "getClass", "getName"), _said(java, "getMessage")
        yield _Cause(_said(java, "getSqlState"), _said(java, "getCondition"), kind, message)
        try:
            java = java.getCause()
        except Exception:  # the JVM may be gone; the error that we describe matters, not this one
            return


def _said(of: Any, *methods: str) -> str:
    """Return what the methods, each called on the result of the one before, return at last; "": nothing."""
    try:
        for method in methods:
            of = getattr(of, method)()
    except Exception:  # it has no such method, or the JVM may be gone
        return ""
    return "" if of is None else str(of)


def short(text: str, limit: int = 1000) -> str:
    """Return what a text of Spark says, without plans, stack traces and secrets, and cut at `limit` characters."""
    text = _PLAN.sub("", text).split("\n\tat ")[0].split("\n\nJVM stacktrace:")[0].split("\n== SQL")[0].strip()
    text = str(without_secrets(text))  # before it is cut: the end of a password shows that it is one
    return text if len(text) <= limit else f"{text[:limit]} ..."
