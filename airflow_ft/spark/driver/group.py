"""The driver of a group of streams: one JVM and one Python process, in which each stream has a thread of its own.

The task asks for a stream by a file in the driver's private folder, which names the stream's own folder. There is all
that a driver of one stream has: its request, its result, and the requests to end. Streams share Spark's context. Each
has a Spark session of its own, so settings, views, functions and queries are apart, and a pool of Spark's fair
scheduler.

What if ...
- a job calls `stop` of Spark: only that job fails.
- Spark stops in the process in another way: the process ends, so that the streams restart with another one.
- the process dies: each stream restarts, as after the death of a driver of its own.
- the process is stopped and continues beside its successor: each stream has an epoch of its own, and is fenced (I5).
- a job hangs in its own Python code: no thread can be ended, so the process ends (`Stopper`). The other streams restart
  without counting it (`airflow_ft.spark.task.shared`).
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ft.clients.buckets import BucketPlace, BucketSettings, is_bucket, learn
from airflow_ft.protocol.errors import AirflowFtError, JobError, StageError
from airflow_ft.spark.attribution import MarkedOutput, current, inherited, working_for
from airflow_ft.spark.driver.failures import as_error
from airflow_ft.spark.driver.own_queries import stop
from airflow_ft.spark.driver.requests import require_folder
from airflow_ft.spark.driver.runner import Attempt, log_result
from airflow_ft.spark.driver.session import is_alive, leave_session, start_session
from airflow_ft.spark.driver.speech import speak
from airflow_ft.spark.driver.stopper import GROUP_STOP_SECONDS, await_query_end
from airflow_ft.spark.private import PROPERTIES, write
from airflow_ft.spark.process import die_with_parent
from airflow_ft.spark.reports import describe_error
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.session.groups import two_connections, unequal_setting
from airflow_ft.spark.session.submit import END, ENDED, KILL, REQUEST, RESULT, SESSION, START

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_SECONDS = 0.2
_ALIVE_SECONDS = 2.0
POOL = "spark.scheduler.pool"
_STOP_OTHER = "spark.sql.streaming.stopActiveRunOnRestart"
"""Whether Spark stops a query of any session that has the same id, such as one from which a savepoint was copied."""

_sessions: dict[str, Any] = {}
"""The Spark session of each stream."""

log = logging.getLogger("airflow_ft.spark")


def main(folder: str, master: str) -> int:
    """Run the streams that the task asks for in `folder`, until it asks to end; the exit code of the process."""
    die_with_parent()
    output = MarkedOutput(sys.stdout.fileno())
    sys.stdout = sys.stderr = output
    speak(output)
    private = Path(folder)
    with inherited():
        try:
            spark = start_session(master, None)
            _start_callbacks(spark)
            _separate_sessions(spark)
            _refuse_stops()
        except Exception as error:
            found = error if isinstance(error, AirflowFtError) else as_error(error, "", "", None)
            write(private / RESULT, json.dumps({"error": describe_error(found)}))
            return 1
        finally:
            (private / PROPERTIES).unlink(missing_ok=True)  # it may hold credentials, and was read
        try:
            _serve(private, spark, output)
        except StageError as error:
            write(private / RESULT, json.dumps({"error": describe_error(error)}))
            return 1
        write(private / RESULT, json.dumps({}))
        leave_session(spark, None, failed=False)
    return 0


def _start_callbacks(spark: SparkSession) -> None:
    """Once and here: two streams that do it at the same time would start two servers."""
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]


def _separate_sessions(root: SparkSession) -> None:
    """Let pyspark use the calling stream's session where it has one for the process: the newest, of any stream.

    `root`: for a thread of no stream.
    """
    from pyspark import RDD
    from pyspark.sql import SparkSession, session

    def own(_: Any = None) -> Any:
        return _sessions.get(current(), root)

    def to_df(rdd: Any, schema: Any = None, sampleRatio: Any = None) -> Any:
        return own().createDataFrame(rdd, schema, sampleRatio)

    rdds: Any = RDD
    sessions: Any = SparkSession
    module: Any = session
    sessions.getActiveSession = classmethod(own)
    rdds.toDF, module._monkey_patch_RDD = to_df, lambda _: None


def _refuse_stops() -> None:
    """Fail the job that stops Spark, which all streams of the process use."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    def refusing(stop: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(stop)
        def refuse(self: Any) -> None:
            if current():
                raise JobError(
                    "the job stops Spark, which all streams of its group use.",
                    code="job_stops_spark",
                    remedy="Remove stop() of the session and of the context from the job.",
                )
            stop(self)

        return refuse

    kinds: tuple[Any, ...] = (SparkContext, SparkSession)
    for kind in kinds:
        kind.stop = refusing(kind.stop)


def _serve(private: Path, spark: SparkSession, output: MarkedOutput) -> None:
    members: list[_Member] = []
    buckets: dict[str, str] = {}
    looked = time.monotonic()
    while True:
        if time.monotonic() - looked > _ALIVE_SECONDS:
            _require_alive(spark)
            require_folder(private)
            looked = time.monotonic()
        for order in sorted(private.glob(f"*.{START}")):
            members.append(_Member(Path(order.read_text(encoding="utf-8")), spark, buckets, output))
            order.unlink()
        for member in members:
            member.look()
        members = [member for member in members if member.is_alive]
        if not members and (private / END).exists():
            return
        time.sleep(_LOOK_SECONDS)


def _require_alive(spark: SparkSession) -> None:
    """Raise StageError when Spark has stopped in this process: no stream could use it again."""
    if not is_alive(spark):
        raise StageError(
            "Spark has stopped in the driver of the group.",
            code="driver_ended",
            remedy="Look for the cause in the task's log. All streams restart.",
        )


class _Member:
    """One stream, from its request to its result."""

    def __init__(self, folder: Path, root: SparkSession, buckets: dict[str, str], output: MarkedOutput) -> None:
        """`buckets`: the connection by which each bucket is read, for all streams of this process."""
        self._folder, self._root, self._buckets, self._output = folder, root, buckets, output
        self._attempt: Attempt | None = None
        self._spark: SparkSession | None = None
        self._killed = False
        self._thread = threading.Thread(target=self._run, name=f"stream-{folder.name}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether its thread has not ended."""
        return self._thread.is_alive()

    def look(self) -> None:
        """End the stream at once if the task asks for that, or has gone from it."""
        if self._killed or not ((self._folder / KILL).exists() or not self._folder.exists()):
            return
        self._killed = True
        threading.Thread(target=self._kill, name="kill", daemon=True).start()

    def _kill(self) -> None:
        deadline = time.monotonic() + GROUP_STOP_SECONDS
        error = StageError(
            "the stream was ended at once.",
            code="driver_ended",
            remedy="Do nothing: the next attempt computes the unpublished rows again.",
        )
        while self.is_alive and time.monotonic() < deadline:
            if self._attempt is not None:
                self._attempt.failed(error)
            if self._spark is not None:
                for query in self._spark.streams.active:
                    with suppress(Exception):  # it ends meanwhile
                        stop(query)
            self._thread.join(_LOOK_SECONDS)
        if self.is_alive:  # the job hangs in its own code
            with suppress(Exception):
                if self._attempt is not None:
                    self._attempt.report(error)
            os._exit(1)

    def _run(self) -> None:
        name = ""
        try:
            request = StageRequest.from_json(json.loads((self._folder / REQUEST).read_text(encoding="utf-8")))
            conf = json.loads((self._folder / SESSION).read_text(encoding="utf-8"))
            for private in (REQUEST, SESSION):  # they hold credentials, and have been read
                (self._folder / private).unlink(missing_ok=True)
            name = request.pipeline
            with working_for(name):
                self._stage(request, conf)
        except Exception:  # the folder has gone: the task was killed, or has given the stream up
            logging.getLogger(__name__).warning("a stream ended without a report", exc_info=True)
        finally:
            self._output.say(name or "?", f"{ENDED}{self._folder.name}")  # not `sys.stdout`: a job may redirect it

    def _stage(self, request: StageRequest, conf: Mapping[str, str]) -> None:
        attempt = self._attempt = Attempt(
            request, self._folder / RESULT, None, start=functools.partial(self._session, request, conf)
        )
        try:
            result = attempt.run()
        except BaseException as error:
            if not is_alive(self._root):  # `_serve` ends the process, which no stream is to blame for
                time.sleep(3 * _ALIVE_SECONDS)
            attempt.report(error)
        else:
            log_result(result)
            write(self._folder / RESULT, json.dumps({"result": result.to_json()}))
        finally:
            if self._spark is not None:
                with suppress(Exception):  # the JVM may have gone
                    for query in self._spark.streams.active:
                        stop(query)

    def _session(self, request: StageRequest, conf: Mapping[str, str]) -> SparkSession:
        """A session of its own in the JVM of all."""
        from pyspark.errors import AnalysisException

        self._learn(request)
        if former := _sessions.get(request.pipeline):
            await_query_end(former, request.pipeline)
        root: Any = self._root
        spark: Any = root.newSession()
        root._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
        root.sparkContext.setLocalProperty(POOL, request.pipeline)  # its queries inherit it from this thread
        for name, value in conf.items():
            if spark.conf.isModifiable(name):
                spark.conf.set(name, value)
            elif name in request.conf and spark.conf.get(name, None) != value:
                try:
                    spark.conf.set(name, value)  # Spark does not know it, such as the name of a catalog
                except AnalysisException as error:  # the JVM has it once
                    raise unequal_setting(name, [request.pipeline]) from error
        spark.conf.set(_STOP_OTHER, "false")
        self._spark = _sessions[request.pipeline] = spark
        return self._spark

    def _learn(self, request: StageRequest) -> None:
        """Settings of buckets hold for the whole process and its JVM."""
        for each in request.buckets:
            learn(BucketSettings(**each))
        places = [request.wal_root, request.base.location if request.base is not None else ""]
        for place in (BucketPlace.of(uri) for uri in places if is_bucket(uri)):
            if self._buckets.setdefault(place.bucket, place.conn_id) != place.conn_id:
                raise two_connections(place.bucket, [request.pipeline])
