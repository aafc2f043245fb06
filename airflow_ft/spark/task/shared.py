"""The driver of a group of streams, as its task sees it: one process, started by the first stream that needs it.

For each stream the process looks like a driver of its own (`SharedStream`): `stage` and `run_stage` work with it as
with a `Driver`. When it dies, all streams learn that, and the first of them that restarts starts another one.

No stream counts a death whose cause is unknown: one stream could use up the restarts of all. The group counts it, by a
strategy of its own. If only one stream ran, it counts its driver's death itself.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from airflow_ft.clients.buckets import is_bucket
from airflow_ft.protocol.errors import CheckpointExpiredError, StageError, TransientError
from airflow_ft.protocol.restart import ExponentialDelay, RestartStrategy, given_up, wait_after
from airflow_ft.spark.attribution import unmarked, working_for
from airflow_ft.spark.private import PROPERTIES, private_folder, write
from airflow_ft.spark.process import TERM_SECONDS, Driver
from airflow_ft.spark.reports import describe_error, hidden, rebuild_error
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.session.groups import DEFAULTS, OWN, SQL, is_of_session, unequal_setting
from airflow_ft.spark.session.submit import (
    END,
    ENDED,
    KILL,
    MAIN,
    RESULT,
    SESSION,
    START,
    end_driver,
    environment,
    properties,
    settings,
    submit,
    write_main,
    write_program,
)
from airflow_ft.spark.state.settings import FORMAT
from airflow_ft.spark.task.beginning import Beginning
from airflow_ft.spark.task.hung import of_group
from airflow_ft.spark.task.story import Story
from airflow_ft.spark.task.symptoms import Symptoms, driver_died

log = logging.getLogger(__name__)

_REMEDY = "Look for the cause in the task's log. All streams restart, and the next attempts compute the rows again."
ENDED_BY_OTHER = "driver_ended_by_other"
"""Code of the StageError of a stream whose driver had to end because another stream of its group did not end."""
DIED = "group_driver_died"
"""Code of the StageError of all streams whose driver has died for an unknown reason, which the group counts."""
WAIT = "restart_in"
"""Field of that error: the seconds until the streams restart."""
LINES = 10_000
"""Most lines of a stream that wait for its thread. Then the driver's output waits, as that of a driver of its own."""
_LOOK_SECONDS = 0.5
KILL_SECONDS = 45.0
"""How long a stream may take to end at once, or after its result. Then the whole driver is killed.

Counts only while the driver's output is read: the line that says the end may be behind those of another stream.
"""


class SharedStream(Driver):
    """One stream in a shared driver."""

    def __init__(self, host: SharedDriver, process: Driver, folder: Path, pipeline: str) -> None:
        self.pid, self.killed, self.pipeline = process.pid, False, pipeline
        self._host, self.process, self.folder, self._end = host, process, folder, end_driver(folder)
        self._lines: queue.SimpleQueue[str | int] = queue.SimpleQueue()  # at last the exit code
        self._room, self._left = threading.Semaphore(LINES), False
        self._over = threading.Event()
        self.hung: CheckpointExpiredError | None = None

    def kill(self, grace: float = TERM_SECONDS) -> None:
        """End the stream at once; if it does not end within `KILL_SECONDS`, the whole driver. Waits for `grace`."""
        if not self.killed:
            self.killed = True
            with suppress(OSError):
                write(self.folder / KILL, "")
                write(self.folder / END, "")
            self._begin_end()
        self._over.wait(grace)

    def kill_hung(self, error: CheckpointExpiredError) -> None:
        """End the whole driver. No stream is blamed: which one keeps it from running is unknown."""
        self.hung = error
        self.process.kill()

    def wait(self, log: Callable[[str], None], result: Path) -> int:
        """Hand each line of the stream to `log`, and return the exit code.

        A stream that has written `result` but does not end within `KILL_SECONDS` is killed with the whole driver. Text
        of the JVM may also have torn the line that says the end.
        """
        reported = False
        line: str | int | None
        try:
            while True:
                try:
                    line = self._lines.get(timeout=_LOOK_SECONDS)
                except queue.Empty:
                    line = None
                if isinstance(line, int):
                    return line
                if not reported and result.exists():
                    reported = True
                    self._begin_end()
                if line is not None:
                    self._room.release()
                    log(line)
        except BaseException:
            self._left = True
            self.kill(0)
            raise

    def said(self, line: str) -> None:
        """The stream has said this. Waits while `LINES` lines wait; drops the line if no thread reads them any more."""
        while not self._left:
            if self._room.acquire(timeout=_LOOK_SECONDS):
                self._lines.put(line)
                return
            self._host.held_up = time.monotonic()

    def over(self, code: int) -> None:
        """The stream has ended, or its driver."""
        self._over.set()
        self._lines.put(code)

    def _begin_end(self) -> None:
        threading.Thread(target=self._require_end, name="end-stream", daemon=True).start()

    def _require_end(self) -> None:
        since = time.monotonic()
        while not self._over.wait(_LOOK_SECONDS):
            if time.monotonic() - max(since, self._host.held_up) >= KILL_SECONDS:
                log.warning("[%s] did not end within %.0f s, so its driver is killed", self.pipeline, KILL_SECONDS)
                self._host.blame(self)
                self.process.kill()
                return


class SharedDriver:
    """The drivers of a group, one after the other. Safe for threads.

    Args:
        name: of the group, for Spark's name of the application.
        restart: counts the deaths of drivers whose cause is unknown.
        sources, wal_roots: of all its streams, for the jars that they need.
        on_line: receives what the driver says for no stream, without secrets.
        on_start: receives each process.

    Attributes:
        held_up: when the driver's output last waited for the thread of a stream, by the monotonic clock; 0: never.
    """

    def __init__(
        self,
        name: str,
        *,
        restart: RestartStrategy | None = None,
        sources: Iterable[Mapping[str, Any]] = (),
        wal_roots: Iterable[str] = (),
        on_line: Callable[[str], None],
        on_start: Callable[[Driver], None] = lambda _: None,
    ) -> None:
        self._name, self._on_line, self._on_start = name, on_line, on_start
        self._restarts = (restart or ExponentialDelay()).begin(time.monotonic())
        self._sources = {str(number): source for number, source in enumerate(sources)}
        self._roots = list(wal_roots)
        self._lock, self._fetching = threading.Lock(), threading.Lock()
        self._process: Driver | None = None
        self._folder = Path()
        self._conf: Mapping[str, str] = {}
        self._orders = 0
        self._streams: list[SharedStream] = []
        # By driver, as long as it has streams: the system gives process ids again.
        self._blamed: WeakKeyDictionary[Driver, list[str]] = WeakKeyDictionary()
        self._errors: WeakKeyDictionary[Driver, Any] = WeakKeyDictionary()
        self._hide: dict[str, Callable[[str], str]] = {}
        self._thread: threading.Thread | None = None
        self._closed, self.held_up = False, 0.0
        self.symptoms, self._story = Symptoms(), Story()

    def start(self, folder: Path, request: StageRequest) -> SharedStream:
        """Have a stream computed by the driver; starts one if none runs.

        Raises:
            ConfigurationError: the stream has a setting that the JVM has with another value.
        """
        with self._fetching:  # the first one may fetch jars, and the others find them
            conf = {**DEFAULTS, **settings(request, folder)}
        with self._lock:
            if self._closed:
                raise StageError(
                    "the task of the group ends.", code="driver_ended", remedy="Do nothing: the next try continues."
                )
            self._hide[request.pipeline] = request.redactor()
            if self._process is None:
                self._begin(request)
            assert self._process is not None
            self._require_equal(request, conf)
            write_main(folder, request)
            write(folder / SESSION, json.dumps({n: v for n, v in conf.items() if n.startswith(SQL)}))
            stream = SharedStream(self, self._process, folder, request.pipeline)
            self._orders += 1
            write(self._folder / f"{self._orders:06d}.{START}", str(folder))
            self._streams.append(stream)  # only now: if the write fails, no thread reads its lines
        return stream

    def error_of(self, stream: Driver) -> Mapping[str, Any] | None:
        """Return why a stream's driver ended without a report of this stream; None: unknown."""
        assert isinstance(stream, SharedStream)
        with self._lock:
            if error := self._errors.get(stream.process):
                return {**error, "pipeline": stream.pipeline}
            blamed = [*dict.fromkeys(self._blamed.get(stream.process, ()))]
        blamed = [each for each in blamed if each != stream.pipeline]
        if not blamed or stream.killed:
            return None
        return {
            "type": "StageError",
            "what": f"the group's driver ended, because {' and '.join(blamed)} did not end.",
            "code": ENDED_BY_OTHER,
            "fields": {"pipelines": blamed},
            "remedy": f"Look at {blamed[0]} in the task's log. If it repeats, run {blamed[0]} in a task of its own."
            " This stream restarts.",
            "pipeline": stream.pipeline,
        }

    def blame(self, stream: SharedStream) -> None:
        """The driver has to end because of this stream."""
        with self._lock:
            self._blamed.setdefault(stream.process, []).append(stream.pipeline)

    def kill(self) -> None:
        """End the driver and start no other one. For a task's `on_kill`; any thread."""
        with self._lock:
            self._closed, process = True, self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the driver when no stream runs any more. Kills a driver that cannot be asked, such as on a full disk."""
        with self._lock:
            self._closed, thread, process = True, self._thread, self._process
        if process is not None:
            try:
                write(self._folder / END, "")
            except OSError:
                process.kill()
        if thread is not None:
            thread.join()

    def _begin(self, request: StageRequest) -> None:
        """Start a driver from a thread that lives as long: the kernel ends the driver with it."""
        self.symptoms, self._story = Symptoms(), Story()
        root = next(filter(is_bucket, self._roots), request.wal_root)
        own = {name: value for name, value in request.conf.items() if not is_of_session(name)}
        own.setdefault("spark.app.name", f"airflow-ft {self._name}")
        whole = replace(
            request, conf={**DEFAULTS, **own}, sources={**self._sources, **request.sources}, wal_root=root, base=None
        )
        hide = whole.redactor()
        self._beginning = Beginning(whole, lambda line: self._on_line(hide(line)))
        self._beginning.starts()
        ready: queue.SimpleQueue[tuple[Driver, Path] | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(whole, ready), name="shared-driver", daemon=True)
        self._thread.start()
        begun = ready.get()
        if isinstance(begun, BaseException):
            raise begun
        self._process, self._folder = begun

    def _run(self, request: StageRequest, ready: queue.SimpleQueue[tuple[Driver, Path] | BaseException]) -> None:
        with working_for(""), ExitStack() as stack:
            try:
                folder = stack.enter_context(private_folder())
                self._conf = settings(request, folder)
                # Of each stream's state. From the JVM it would pass on to a session whose stream has the other format.
                self._conf.pop(FORMAT, None)
                write(folder / PROPERTIES, properties(self._conf))
                write_program(folder, "airflow_ft.spark.driver.group", str(folder), request.master)
                driver = Driver(submit(folder, str(folder / MAIN)), environment(request))
            except BaseException as error:
                ready.put(error)
                return
            ready.put((driver, folder))
            code = 1
            try:
                self._on_start(driver)
                code = driver.wait(self._said, folder / RESULT)
            finally:
                self._ended(driver, folder, code)

    def _said(self, line: str) -> None:
        for stream, text in unmarked(line):
            if stream:
                self._hand_over(stream, text)
                continue
            shown = self._without_secrets(text)
            self.symptoms.look(shown)
            if self._story.shows(text):
                self._on_line(self._beginning.shown(shown))
            else:
                log.debug("%s", shown)

    def _without_secrets(self, text: str) -> str:
        """Hide the secrets of all streams."""
        for hide in list(self._hide.values()):
            text = hide(text)
        return text

    def _hand_over(self, pipeline: str, text: str) -> None:
        with self._lock:
            streams = [each for each in self._streams if each.pipeline == pipeline]
            if text.startswith(ENDED):
                ended = [each for each in self._streams if each.folder.name == text.removeprefix(ENDED)]
                self._streams = [each for each in self._streams if each not in ended]
        if text.startswith(ENDED):
            for each in ended:
                each.over(0)
            return
        for each in streams:
            each.said(text)

    def _ended(self, process: Driver, folder: Path, code: int) -> None:
        with self._lock:
            error: Any = None
            with suppress(OSError, ValueError):
                error = json.loads((folder / RESULT).read_text(encoding="utf-8")).get("error")
                error = hidden(error, self._without_secrets)
            streams = [each for each in self._streams if each.process is process]
            failed = [each.pipeline for each in streams if _has_failed(each.folder)]
            blamed = self._blamed.setdefault(process, [])
            blamed.extend(failed)
            hung = next((each.hung for each in streams if each.hung), None)
            if not blamed and not self._closed:
                if hung and not error:
                    error = describe_error(hung if len(streams) == 1 else of_group(hung))
                if len(streams) > 1:
                    error = self._counted(error or driver_died("the driver of the group", code, self.symptoms, _REMEDY))
            if error:
                self._errors[process] = error
            self._streams = [each for each in self._streams if each not in streams]
            if self._process is process:
                self._process = None
        for each in streams:
            each.over(code)

    def _counted(self, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the error of all streams for a death that the group has counted; a terminal error as it is."""
        error = rebuild_error(found)
        if not isinstance(error, TransientError):
            return found
        died = StageError(error.what, code=DIED, remedy=error.remedy, reason=error.code, **error.fields)
        wait = wait_after(died, self._restarts, "the driver of the group")
        if wait is None:
            last = given_up(died, self._restarts.strategy)
            last.remedy += " To restart longer, give StreamGroupOperator another restart=."
            return describe_error(last)
        died.fields[WAIT] = wait
        return describe_error(died)

    def _require_equal(self, request: StageRequest, conf: Mapping[str, str]) -> None:
        """Streams are compared when the DAG is parsed; connections and the configuration may say more."""
        for name in sorted(request.conf):
            if not is_of_session(name) and conf.get(name) != self._conf.get(name) and name not in OWN:
                raise unequal_setting(name, [request.pipeline])


def _has_failed(folder: Path) -> bool:
    """Return whether the stream reported an error, after which its driver had to end."""
    with suppress(OSError, ValueError):
        return "error" in json.loads((folder / RESULT).read_text(encoding="utf-8"))
    return False
