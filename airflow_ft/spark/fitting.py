"""Ask the sinks, before any row is computed, whether they accept the job's columns.

The driver knows the columns and holds no credentials of sinks; its task may open them. So the driver writes the
columns of each sink, with Spark's type names (`ask`), and the task answers in parallel (`Answers`). Both files are in
the private folder of the attempt. Without an answer in time the driver continues: `prepare` judges everything again,
so nothing depends on this.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from airflow_ft.protocol.background import beside
from airflow_ft.protocol.errors import AirflowFtError, JobError, TerminalError, together
from airflow_ft.protocol.warning import PipelineWarning
from airflow_ft.sinks.fitting import not_judged
from airflow_ft.spark.arrow_types import arrow_schema
from airflow_ft.spark.driver.rowless import LooksAtRowsError, no_actions
from airflow_ft.spark.driver.types import check_types
from airflow_ft.spark.private import write
from airflow_ft.spark.reports import describe_error, rebuild_error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ft.spark.driver.job import Job
    from airflow_ft.spark.request import StageRequest

QUESTION, ANSWER = "columns.json", "schema_problems.json"
SPLIT_SECONDS = 10.0  # for the job's `split` of an empty batch
ANSWER_SECONDS = 20.0
_LOOK_SECONDS = 0.02

Judge = Callable[[Mapping[str, "pa.Schema"]], Sequence[AirflowFtError]]
"""(columns by sink name) -> the objections of all sinks that can be asked."""

log = logging.getLogger("airflow_ft.spark")


# --- in the driver -------------------------------------------------------------------------------------------------


def ask(
    folder: Path,
    request: StageRequest,
    job: Job,
    spark: SparkSession,
    frame: DataFrame,
    warn: Callable[[PipelineWarning], None] = lambda warning: log.warning("%s", warning),
) -> Callable[[], None]:
    """Ask the task, and return a function that waits for the answer and raises if a sink does not accept the columns.

    `warn` receives a warning when the columns were not judged in time.

    Raises:
        UnfitTargetError: tables or topics must be changed.
        JobError: the job or the sinks of the DAG must be changed.
    """
    if not request.ask_sinks:
        return lambda: None
    columns = _columns(request, job, spark, frame, warn)
    if not columns:
        return lambda: None
    write(folder / QUESTION, json.dumps(columns))
    columns_text = "; ".join(
        f"{sink} ({', '.join(f['name'] for f in schema['fields'])})" for sink, schema in columns.items()
    )
    log.info("columns of the job: %s", columns_text)  # the task looks for the question when it reads a line
    return lambda: _await_answer(folder / ANSWER, request.pipeline, warn)


def _columns(
    request: StageRequest, job: Job, spark: SparkSession, frame: DataFrame, warn: Callable[[PipelineWarning], None]
) -> dict[str, Any]:
    """Return Spark's schema by sink, where it is known without rows: `split` may look at them."""
    if not job.has_split:
        return {request.sinks[0]: frame.schema.jsonValue()} if len(request.sinks) == 1 else {}
    try:
        with no_actions(type(frame)):
            frames = beside(lambda: job.split_nothing(spark, frame, request.sinks), "empty-split").result(SPLIT_SECONDS)
    except TimeoutError:
        warn(not_judged("", f"`split` of an empty batch took longer than {SPLIT_SECONDS:.0f} s."))
        return {}
    except Exception as error:  # whatever it is, a batch with rows will show it
        cause = error.__cause__ or error
        looks = isinstance(cause, LooksAtRowsError)
        reason = f"`split`: {cause}" if looks else f"split of an empty batch raised {type(cause).__name__}: {cause}"
        text = "the columns of the sinks are unknown until there are rows (%s)"
        log.warning(text, reason.splitlines()[0])
        return {}
    known = {*request.sinks, *request.optional_sinks}
    schemas = {name: found.schema for name, found in frames.items() if name in known}
    for name, schema in schemas.items():
        check_types(schema, name)
    return {name: schema.jsonValue() for name, schema in schemas.items()}


def _await_answer(path: Path, pipeline: str, warn: Callable[[PipelineWarning], None]) -> None:
    deadline = time.monotonic() + ANSWER_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            warn(not_judged("", f"no answer from the sinks within {ANSWER_SECONDS:.0f} s."))
            return
        time.sleep(_LOOK_SECONDS)
    problems = [rebuild_error(each) for each in json.loads(path.read_text(encoding="utf-8"))]
    if not problems:
        return
    error = together(problems)
    if isinstance(error, TerminalError):
        where = {"sink": error.sink, "column": error.column, **error.fields}
        error = JobError(error.what, code=error.code, remedy=error.remedy, **where)
    error.remedy += " Nothing was computed yet."
    raise error.located(pipeline=pipeline)


# --- in the task ---------------------------------------------------------------------------------------------------


class Answers:
    """Answers the driver's question from a thread, when `look` has seen it."""

    def __init__(self, folder: Path, judge: Judge) -> None:
        self._folder, self._judge = folder, judge
        self._asked, self._ended = threading.Event(), False
        threading.Thread(target=self._run, name="fitting", daemon=True).start()

    def look(self) -> None:
        """To be called for each line of the driver."""
        if not self._asked.is_set() and (self._folder / QUESTION).exists():
            self._asked.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = not self._asked.is_set()
        self._asked.set()

    def _run(self) -> None:
        import pyarrow  # noqa: F401 - while Spark starts

        self._asked.wait()
        if self._ended:
            return
        problems: Sequence[AirflowFtError] = ()
        try:
            problems = self._judge(self._schemas())
        except Exception as error:  # our own mistake, perhaps: `prepare` is what counts
            log.warning("the job's columns were not compared with the sinks: %s: %s", type(error).__name__, error)
        with suppress(OSError):  # the driver may have ended
            write(self._folder / ANSWER, json.dumps([describe_error(problem) for problem in problems]))

    def _schemas(self) -> Mapping[str, pa.Schema]:
        columns = json.loads((self._folder / QUESTION).read_text(encoding="utf-8"))
        found: dict[str, pa.Schema] = {}
        for name, each in columns.items():
            if (schema := arrow_schema(each)) is not None:
                found[name] = schema
            else:
                log.warning("%s", not_judged(name, f"sink {name!r} gets a column of a type that is unknown here."))
        return found
