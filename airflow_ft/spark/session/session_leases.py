"""Spark sessions that are kept between runs: `keep_session`.

A driver spends most of its first seconds on starting a JVM, loading classes and compiling them. With `keep_session` a
separate process (`airflow_ft.spark.session.session_keeper`) keeps the idle JVM for that many seconds after a run. The
next run on this machine continues in it. Each run has its own Python process, which imports the job again, and its own
Spark session with settings, views and functions. It shares with earlier runs the JVM, its Spark context and its catalog
of tables.

Only the pipeline that started a JVM uses it again, and only if everything that it was started with is equal (`_key`).
One run at a time uses it, after a run that succeeded and cleaned up (`detach`). A run that failed or was killed takes
the JVM with it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from airflow_ft.protocol.errors import StageError
from airflow_ft.spark import private
from airflow_ft.spark.request import StageRequest, is_local, listed
from airflow_ft.spark.session.home import spark_home
from airflow_ft.spark.session.session_keeper import END, FREE, JVM, KEPT, SOCKET, SPEC, USE
from airflow_ft.spark.session.submit import environment, properties, settings, submit

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Of one run, and so nothing for a JVM that serves several.
_OF_A_RUN = ("AIRFLOW_CTX_", "TRACEPARENT", "TRACESTATE")
_SHELL = {"_", "SHLVL", "PWD", "OLDPWD"}
_GREETING_SECONDS = 2.0
_LOG_LEVEL = "airflow_ft.log.level"
"""The JVM's property with the level of its log in runs."""

log = logging.getLogger(__name__)


class SessionLease:
    """A JVM that a stage has for itself: until it is given back, or the connection ends with this process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def fileno(self) -> int:
        """The open file of the connection, for the Python driver to `attach` to."""
        return self._connection.fileno()

    def share(self, output: int) -> None:
        """The JVM says what it has to say into this open file; with this the stage begins."""
        try:
            socket.send_fds(self._connection, [USE], [output])
        except OSError as error:
            raise StageError(
                "the Spark JVM that was kept from an earlier run has just ended.",
                code="driver_ended",
                remedy="Do nothing: the next attempt starts a new JVM.",
            ) from error

    def end(self, *, keep: bool) -> None:
        """Gives the JVM back, or ends it."""
        with suppress(OSError):
            if keep:
                self._connection.sendall(KEPT)
        self._connection.close()


def borrow(
    request: StageRequest, *, on_found: Callable[[], None] = lambda: None, on_start: Callable[[], None] = lambda: None
) -> SessionLease | None:
    """Return a JVM for this request: an idle one, or else a new one; None where none can be kept.

    Ends idle ones that this pipeline started with other settings, which may never be used again. Calls `on_found` for
    an idle one, and `on_start` before it starts a new one.
    """
    variables = _variables(request)
    key = _key(request, variables)
    for found in kept():
        if found.key == key:
            if session_lease := found.borrow():
                on_found()
                return session_lease
        elif found.pipeline == request.pipeline:
            found.end()
    on_start()
    try:
        return _start(request, key, variables)
    except OSError as error:
        log.warning("this machine cannot keep a Spark session, so this run starts its own: %s", error)
        return None


def _start(request: StageRequest, key: str, variables: Mapping[str, str]) -> SessionLease:
    folder, lock = private.make(private.SESSION)
    ours, theirs = socket.socketpair()
    try:
        private.write(folder / private.PROPERTIES, properties(_conf(request, folder)))
        spec = {
            "pipeline": request.pipeline,
            "key": key,
            "idle": request.keep_session,
            "command": submit(folder, "pyspark-shell"),
        }
        private.write(folder / SPEC, json.dumps(spec))
        with socket.socket(socket.AF_UNIX) as probe:  # refuses a path that is too long
            probe.bind(str(folder / SOCKET))
        (folder / SOCKET).unlink()
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "airflow_ft.spark.session.session_keeper",
                str(folder),
                str(theirs.fileno()),
                str(lock),
            ],
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(theirs.fileno(), lock),
        )
        theirs.close()
        if ours.recv(1) != FREE:
            raise OSError(f"the process that keeps it ended with code {process.wait()}")
        process.wait()  # it has gone into the background
    except BaseException:
        ours.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        theirs.close()
        os.close(lock)
    return SessionLease(ours)


@dataclass(frozen=True, slots=True)
class Kept:
    """A JVM that is kept on this machine, by this user; `pipeline` has started it."""

    folder: Path
    pipeline: str
    key: str

    @property
    def jvm(self) -> int:
        """Its process id; 0 while it is not there yet."""
        try:
            return int((self.folder / JVM).read_text(encoding="utf-8") or 0)
        except FileNotFoundError:
            return 0

    def borrow(self) -> SessionLease | None:
        """None when it is busy, or has gone."""
        connection = self._connect()
        return SessionLease(connection) if connection else None

    def is_idle(self) -> bool:
        """Return whether it could be borrowed now."""
        connection = self._connect()
        if connection:
            connection.close()
        return connection is not None

    def end(self) -> bool:
        """Ends it, unless it is busy; whether it did."""
        connection = self._connect()
        if connection:
            with suppress(OSError), connection:
                connection.sendall(END)
        return connection is not None

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_GREETING_SECONDS)
        try:
            connection.connect(str(self.folder / SOCKET))
            if connection.recv(1) == FREE:
                connection.settimeout(None)
                return connection
        except OSError:
            pass
        connection.close()
        return None


def kept() -> list[Kept]:
    """All of this user on this machine, idle and busy; the folders of dead ones are removed."""
    found = []
    for folder in private.folders(private.SESSION):
        if private.sweep(folder):
            continue
        with suppress(OSError, ValueError, KeyError):
            spec = json.loads((folder / SPEC).read_text(encoding="utf-8"))
            found.append(Kept(folder, spec["pipeline"], spec["key"]))
    return found


def _conf(request: StageRequest, folder: Path) -> dict[str, str]:
    """Nothing of one pipeline, but what it has set itself."""
    return {**settings(request, folder), "spark.app.name": request.conf.get("spark.app.name", "airflow-ft")}


def _variables(request: StageRequest) -> dict[str, str]:
    return {n: v for n, v in environment(request).items() if not n.startswith(_OF_A_RUN) and n not in _SHELL}


def start_key(request: StageRequest) -> str:
    """Return a digest of everything that the JVM of a request is started with: settings, environment, jars."""
    return _key(request, _variables(request))


def _key(request: StageRequest, variables: Mapping[str, str]) -> str:
    """Return everything that a JVM is started with. It contains secrets, so keep it in private files only."""
    conf = _conf(request, Path())
    holders = ("spark.jars", "spark.files", "spark.archives", "spark.submit.pyFiles")
    files = [file for name in holders for file in listed(conf.get(name, ""))]
    changed = []
    for file in (str(spark_home() / "jars"), __file__, *files):
        with suppress(OSError):
            changed.append([file, Path(file.removeprefix("file:")).stat().st_mtime_ns])
    whose = [request.session_name or request.pipeline, str(Path.cwd())]
    # Without the user, SPARK_LOCAL_IP says only whether a name server answered.
    chosen = [each for each in sorted(variables.items()) if each[0] != "SPARK_LOCAL_IP" or each[0] in os.environ]
    everything = [whose, sorted(conf.items()), chosen, changed]
    return hashlib.sha256(json.dumps(everything).encode()).hexdigest()


def attach(connection: int) -> SparkSession:
    """In the Python driver: a session in the JVM that was borrowed; the process ends when that one ends."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.set_inheritable(connection, False)  # what the job starts must not hold it open,
    os.register_at_fork(after_in_child=lambda: os.close(connection))  # nor what it forks
    keeper = socket.socket(fileno=connection).makefile("rb")
    address = _read_message(keeper)
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(address["port"]), address["secret"]
    threading.Thread(target=_read_message, args=(keeper,), name="session", daemon=True).start()
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    logging.getLogger("py4j").setLevel(logging.ERROR)  # it warns of each object of earlier drivers that is released
    if workers := SparkConf(_jvm=gateway.jvm).get("spark.pyspark.python"):  # as spark-submit hands it on
        os.environ["PYSPARK_PYTHON"] = workers
    default = gateway.jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession()
    if not default.isDefined() or default.get().sparkContext().isStopped():
        context = SparkContext(gateway=gateway)
        spark = SparkSession(context)
    else:
        java = gateway.jvm.JavaSparkContext(default.get().sparkContext())
        context = SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.getConf()))
        spark = SparkSession(context, default.get().newSession())
        if level := gateway.jvm.System.getProperty(_LOG_LEVEL):
            context.setLogLevel(level)
    # Workers are shared by equal environments only: those of earlier runs have imported the job as it was then.
    context.environment["AIRFLOW_FT_SESSION"] = uuid.uuid4().hex
    context._airflow_ft_files = _files(spark)  # type: ignore[attr-defined]
    return spark


def _files(spark: SparkSession) -> list[str]:
    return sorted([*spark.sparkContext.listFiles, *spark.sparkContext.listArchives])


def detach(spark: SparkSession) -> None:
    """Leaves nothing behind that would work, or take memory, beside the next run; `spark` is of no use any more.

    Raises whatever prevents that; the JVM must not be used again then.
    """
    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]

    for query in spark.streams.active:
        query.stop()
    context = spark.sparkContext
    context.cancelAllJobs()
    spark.catalog.clearCache()
    if _files(spark) != context._airflow_ft_files:  # type: ignore[attr-defined]
        raise RuntimeError("the job has added files, and Spark would not read them again after a change")
    # Else the state stores of this run's queries would be looked after, and written to, for another minute.
    context._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # type: ignore[union-attr]
    if not is_local(str(context.master)):
        _replace_executors(context)
    gateway = context._gateway
    assert gateway is not None
    server = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
    # What py4j has handed to this process would stay for ever: its sessions above all. Names of objects begin with o.
    names = server.getGateway().getBindings().keySet()
    names.retainAll([name for name in names if not name.startswith("o")])


def _replace_executors(context: SparkContext) -> None:
    """Let the cluster start other executors: each holds Python processes of this run, which Spark never ends.

    Spark would report in the task's log that it has lost them, so it is silent until the next run.
    """
    jvm = context._jvm
    assert jvm is not None
    jvm.System.setProperty(_LOG_LEVEL, str(jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel()))
    context.setLogLevel("OFF")
    spark = context._jsc.sc()
    for number in list(spark.getExecutorIds().mkString(" ").split()):
        spark.killAndReplaceExecutor(number)


def await_end(seconds: float = 5.0) -> None:
    """When the JVM has ended, this process ends by that (`_read_message`), and not by what it met for it."""
    with suppress(KeyError, OSError), socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", int(os.environ["PYSPARK_GATEWAY_PORT"]))) != 0:
            time.sleep(seconds)


def _read_message(keeper: BinaryIO) -> dict[str, Any]:
    """Return the keeper's message: the JVM's address, or its end, and then this process ends too."""
    line = b""
    with suppress(OSError):  # a keeper that is killed with something unread resets the connection
        line = keeper.readline()
    said: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {"ended": -signal.SIGKILL}
    if "ended" in said:
        os._exit(128 - said["ended"] if said["ended"] < 0 else said["ended"] or 1)  # as a shell reports it
    return said
