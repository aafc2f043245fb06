"""The user's job: finding it, calling it, and checking what it returns.

A job is a module, an object or a class (of the DAG file, too: `load`) with

- `transform(spark, sources)` -> one DataFrame; streaming, or static for a plain batch job, which is one checkpoint;
- optionally `split(batch)` -> `{sink name: DataFrame}`: divides one micro-batch, which was materialised before, so
  that all sinks see the same values. Without it all rows go to the only sink. It is called once more, before the
  first batch, with an empty one and on a copy of the job: the columns that it returns are compared with the sinks. Of
  a job that looks at its rows there (`count`, `collect` ...) they are not known before;
- optionally `output_mode`: "append" (default), "update" or "complete", as of Spark's streaming queries.

The job's arguments go to the constructor of a class, else to `transform` as keyword arguments. A function of the DAG
file is the `transform` of a job that has nothing else.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import linecache
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_ft.jobs.parsing import MALFORMED, malformed_rows, parsed_rows
from airflow_ft.protocol.errors import JobError
from airflow_ft.protocol.inline_job import InlineJob, Part
from airflow_ft.spark.attribution import current
from airflow_ft.spark.driver.failures import InUserCode
from airflow_ft.spark.driver.own_queries import refuse_running, refusing_queries, running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ft.spark.driver.inputs import Sources

_OUTPUT_MODES = ("append", "update", "complete")
MODULE = "airflow_ft_job"
"""The job's `__name__` in the driver; with the pipeline's behind it where several streams share the driver."""
_LOCK = threading.Lock()
_lines: dict[str, list[str]] = {}
"""By file: the lines that were shipped, of all jobs of this process."""


class Job:
    """A loaded job. Errors of the user's code raise InUserCode from them; a wrong shape raises JobError."""

    def __init__(self, given: str | InlineJob, arguments: Mapping[str, Any], dead_letters: str = "") -> None:
        """`dead_letters`: the sink of rows that are marked as malformed, where the job has no `split`; "": none."""
        self._given, self._dead_letters = given, dead_letters
        self.reference = given if isinstance(given, str) else given.reference
        found: Any = self._imported() if isinstance(given, str) else _called(load, given)
        self._arguments = dict(arguments)
        if inspect.isclass(found):
            self._require_fit(found, (), self._arguments, "its constructor")
            found, self._arguments = _called(found, **self._arguments), {}
        elif isinstance(given, InlineJob):
            found = SimpleNamespace(transform=found)
        self._object = found
        if not callable(getattr(found, "transform", None)):
            raise self._error("it has no function transform(spark, sources)", "Write one, with that name.")
        self._split = getattr(found, "split", None)
        self.output_mode = getattr(found, "output_mode", "append")
        if self.output_mode not in _OUTPUT_MODES:
            raise self._error(
                f"its output_mode is {self.output_mode!r}; allowed are {', '.join(_OUTPUT_MODES)}",
                f"Set output_mode to one of them, or remove it: the default is {_OUTPUT_MODES[0]}.",
                value=str(self.output_mode),
            )

    def _imported(self) -> Any:
        module_name, _, name = self.reference.partition(":")
        found: Any = _called(importlib.import_module, module_name)
        for part in name.split(".") if name else ():
            if not hasattr(found, part):
                raise self._error(
                    f"the module {module_name} has no {name}",
                    f'Correct job="{self.reference}" in the DAG, or define {name} in {module_name}.',
                    "job_missing",
                    module=module_name,
                    name=name,
                )
            found = getattr(found, part)
        return found

    @property
    def has_split(self) -> bool:
        """Return whether its rows are divided."""
        return self._split is not None or bool(self._dead_letters)

    def transform(self, spark: SparkSession, sources: Sources) -> DataFrame:
        """The job's DataFrame."""
        self._require_fit(self._object.transform, (spark, sources), self._arguments, "transform")
        before = running(spark)
        with refusing_queries(self.reference, "transform", any_thread=True):
            frame = _called(self._object.transform, spark, sources, **self._arguments)
        refuse_running(spark, self.reference, before)
        if isinstance(frame, Mapping):
            raise self._error(
                "transform returned a dictionary of DataFrames, which is not supported",
                "Return one DataFrame, and divide its rows in split(batch).",
                "job_result_invalid",
            )
        return self._checked(frame, "transform")

    def _require_fit(self, function: Any, given: tuple[Any, ...], arguments: Mapping[str, Any], what: str) -> None:
        """JobError where it does not take these arguments, which the author has named in `job_args`."""
        try:
            inspect.signature(function).bind(*given, **arguments)
        except ValueError:  # it says nothing of what it takes
            return
        except TypeError as error:
            arguments_text = f"has {', '.join(arguments)}" if arguments else "is empty"
            raise self._error(
                f"{what} cannot be called: {error}",
                f"Give in job_args the arguments that the job takes. It {arguments_text} now.",
                arguments=list(arguments),
            ) from None

    def split(self, batch: DataFrame, sinks: Sequence[str], optional: Sequence[str]) -> dict[str, DataFrame]:
        """The rows for each sink: all of `sinks`, and those of `optional` that the job returned."""
        if self._split is None:
            if len(sinks) != 1:
                raise self._error(
                    f"it has no split(batch), but the pipeline has several sinks: {', '.join(sinks)}",
                    "Write split(batch) so that it returns {sink name: DataFrame}.",
                    "split_unfit",
                    sinks=list(sinks),
                )
            frame = self._checked(batch, "transform")
            return self._marked(frame, sinks[0]) if self._dead_letters else {sinks[0]: frame}
        with refusing_queries(self.reference, "split"):
            frames = _called(self._split, batch)
        expected = ", ".join(sinks) + (f" (optional: {', '.join(optional)})" if optional else "")
        if not isinstance(frames, Mapping):
            raise self._error(
                f"split returned {_called_as(frames)}, not a dictionary",
                f"Return {{sink name: DataFrame}} with the sinks {expected}.",
                "job_result_invalid",
            )
        missing = [name for name in sinks if name not in frames]
        unknown = [str(name) for name in frames if name not in sinks and name not in optional]
        if missing or unknown:
            what = [f"nothing for {', '.join(missing)}"] if missing else []
            what += [f"rows for {', '.join(unknown)}, which the pipeline does not declare as a sink"] if unknown else []
            raise self._error(
                f"split returned {' and '.join(what)}",
                f"Return a DataFrame for each sink: {expected}.",
                "split_unfit",
                missing=missing,
                unknown=unknown,
            )
        checked = {name: self._checked(frame, "split", f" for {name}") for name, frame in frames.items()}
        for name, frame in checked.items():
            if frame.isStreaming:
                raise self._error(
                    f"split returned a streaming DataFrame for {name}",
                    "Derive it from the batch.",
                    "job_result_invalid",
                )
        return checked

    def _marked(self, batch: DataFrame, sink: str) -> dict[str, DataFrame]:
        """The rows that `parse_json` has marked apart from the others."""
        if MALFORMED not in batch.columns:
            raise self._error(
                f"it has no split(batch), and its rows have no column {MALFORMED}, so no row is marked as a dead letter"
                f" for {self._dead_letters}",
                'Read the rows with parse_json(..., on_malformed="keep") and keep that column. Or write split(batch).',
                "split_unfit",
                missing=[self._dead_letters],
            )
        return {sink: parsed_rows(batch), self._dead_letters: malformed_rows(batch)}

    def split_nothing(
        self, spark: SparkSession, frame: DataFrame, sinks: Sequence[str] = ()
    ) -> Mapping[str, DataFrame]:
        """Return what `split` makes of a batch without rows: its columns are those that each sink will get.

        It works on a copy of the job, so that whatever it counts or remembers begins with the first batch. Raises what
        it raises.
        """
        from pyspark.sql import DataFrame as Frame

        jvm: Any = spark.sparkContext._jvm
        session: Any = spark._jsparkSession
        nothing = session.createDataFrame(jvm.java.util.ArrayList(), session.parseDataType(frame.schema.json()))
        if self._split is None:
            return self.split(Frame(nothing, spark), sinks, ())
        job = self._object if inspect.ismodule(self._object) else _copied(self._object)
        with refusing_queries(self.reference, "split"):
            frames = _called(job.split, Frame(nothing, spark))
        return {name: found for name, found in dict(frames).items() if isinstance(found, Frame)}

    def _checked(self, frame: Any, function: str, sink: str = "") -> DataFrame:
        from pyspark.sql import DataFrame

        if not isinstance(frame, DataFrame):
            raise self._error(
                f"{function} returned {_called_as(frame)}{sink}, not a DataFrame of Spark",
                _way_to_spark(frame),
                "job_result_invalid",
                returned=_called_as(frame),
            )
        if not frame.columns:
            raise self._error(
                f"{function} returned a DataFrame without columns{sink}",
                "Select the columns to deliver.",
                "job_result_invalid",
            )
        lower = [name.lower() for name in frame.columns]
        if twice := sorted({name for name in lower if lower.count(name) > 1}):
            raise self._error(
                f"{function} returned a DataFrame with two columns named {', '.join(twice)}{sink}",
                'Rename or drop one: frame.withColumnRenamed(...). A join by name, frame.join(other, "id"), keeps one.',
                "column_repeated",
                columns=twice,
            )
        return frame

    def _error(self, what: str, remedy: str, code: str = "job_invalid", **fields: Any) -> JobError:
        return JobError(f"job {self.reference}: {what}.", code=code, remedy=remedy, job=self.reference, **fields)


def _called_as(value: Any) -> str:
    """Its type; of a library with the library's name, since others have a DataFrame, too."""
    kind = type(value)
    library = "pyspark.pandas" if hasattr(value, "to_spark") else kind.__module__.partition(".")[0]
    return kind.__name__ if library in ("builtins", "pyspark") else f"{library}.{kind.__name__}"


def _way_to_spark(value: Any) -> str:
    """Return what to do about a value that is returned in place of a DataFrame."""
    if value is None:
        return "End the function with `return` and the DataFrame."
    if hasattr(value, "to_spark"):
        return "Return frame.to_spark()."
    if type(value).__name__ == "DataFrame":
        return (
            "Stay in Spark: frame.mapInPandas(function, schema) passes pandas frames to a function, part by part. Or,"
            " in split, return batch.sparkSession.createDataFrame(frame)."
        )
    return 'Return one, such as sources["orders"].where("amount > 0").'


def _copied(thing: Any) -> Any:
    try:
        return copy.deepcopy(thing)
    except Exception:  # what cannot be copied (a lock, something of Spark's) is shared
        return copy.copy(thing)


def _called(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
    try:
        return function(*arguments, **keywords)
    except BaseException as error:
        # asyncio.CancelledError is no Exception, and its import takes time. A user's test may raise others.
        if not isinstance(error, Exception | SystemExit) and type(error).__name__ != "CancelledError":
            raise
        raise InUserCode(str(error)) from error


def load(job: InlineJob) -> Any:
    """Create and return the function or class of a job of the DAG file from its source, in a module of its own.

    New on each call; raises what its imports raise. Tracebacks name the DAG file and the lines of it. Functions go to
    Spark's Python workers by value, since there is no module for them to import.
    """
    from pyspark import cloudpickle

    name = "_".join(filter(None, (MODULE, current())))
    module = ModuleType(name)
    module.__file__ = job.file
    sys.modules[name] = module  # dataclasses and type hints look for it there
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    _cache_lines(job)
    for part in job.parts:
        code = _compiled(part, job)
        exec(code, module.__dict__)  # noqa: S102 # the author's own job, in Spark's driver
    return getattr(module, job.name)


def _compiled(part: Part, job: InlineJob) -> CodeType:
    text, before = part.text, part.line - 1
    if text[:1].isspace():  # it is inside a function or a block
        text, before = f"if True:\n{text}", before - 1
    tree = ast.increment_lineno(ast.parse(text, job.file), before)
    flags = annotations.compiler_flag if job.postponed else 0
    code: CodeType = compile(tree, job.file, "exec", flags=flags, dont_inherit=True)
    return code


def _cache_lines(job: InlineJob) -> None:
    """Tracebacks show the lines as they were shipped, even if the file has changed, or is not here.

    Lines that another job of the same file has brought stay.
    """
    with _LOCK:
        lines = list(_lines.get(job.file, ()))
        for part in job.parts:
            text = [f"{line}\n" for line in part.text.splitlines()]
            lines += ["\n"] * (part.line - 1 + len(text) - len(lines))
            lines[part.line - 1 : part.line - 1 + len(text)] = text
        _lines[job.file] = lines
        linecache.cache[job.file] = (sum(map(len, lines)), None, lines, job.file)
