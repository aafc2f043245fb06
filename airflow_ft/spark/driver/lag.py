"""Lag of the query behind its sources, measured from time to time beside it, for people.

The driver writes it to the decision log, and in lines that `airflow_ft.spark.task.launcher` reads. Nothing depends on
it: an error is logged once, and ends nothing. It asks for what the sources have, not for what Spark has planned,
because Spark does not look while a micro-batch takes long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import AirflowFtError, FencedError
from airflow_ft.protocol.lag import Lag
from airflow_ft.protocol.rate import Rate
from airflow_ft.spark.driver.gauges import Gauge
from airflow_ft.spark.request import StageRequest

if TYPE_CHECKING:
    from airflow_ft.store.reports import ReportOperations

EACH_SECONDS = 5.0
LOG_SECONDS = 10.0
_FIRST_SECONDS = 1.0
_END_SECONDS = 3.0
_SHARE = 20  # a look that takes a second is not repeated before twenty

log = logging.getLogger("airflow_ft.spark")


class LagWatch:
    """Measures all sources of an attempt every few seconds, from its own thread.

    That thread also calls `gauges()`, once. `published()` returns the newest number of this attempt and its positions
    by source (None: none yet).
    """

    def __init__(
        self,
        store: ReportOperations,
        request: StageRequest,
        gauges: Callable[[], Mapping[str, Gauge]],
        published: Callable[[], tuple[int, Mapping[str, Any]] | None],
    ) -> None:
        self._store, self._request, self._open = store, request, gauges
        self._published = published
        self._gauges: Mapping[str, Gauge] | None = None
        self._rates: defaultdict[str, Rate] = defaultdict(Rate)
        self._expected: dict[str, int] = {}
        self._stop = threading.Event()
        self._looks_at_end = True
        self._has_failed = False
        self._logged = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="lag", daemon=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """For the duration of the block, and once more at its end, if that is a good one."""
        self._thread.start()
        try:
            yield
        except BaseException:
            self._looks_at_end = False  # what is asked may be why
            raise
        finally:
            self._stop.set()
            self._thread.join(_END_SECONDS)

    def look(self, positions: Mapping[str, Any]) -> list[Lag]:
        """Return the lag of each measurable source behind positions of this attempt ({}: its start)."""
        if self._gauges is None:
            self._gauges = self._open()
        found = []
        for name, gauge in self._gauges.items():
            position = positions.get(name)
            measured = gauge.measure(None if position is None else position["end"])
            if measured is None:
                continue
            behind, done = measured
            expected = 0
            if not self._request.streaming:
                expected = self._expected.setdefault(name, done + behind)
            rate = self._rates[name].rate(time.monotonic(), done)
            found.append(Lag(name, gauge.unit, behind, rate, min(done, expected), expected))
        return found

    def _run(self) -> None:
        wait = _FIRST_SECONDS
        while not self._stop.wait(wait):
            began = time.monotonic()
            if not self._look_and_record() or self._gauges == {}:
                return
            wait = max(EACH_SECONDS, _SHARE * (time.monotonic() - began))
        if self._looks_at_end:
            self._logged = 0.0
            self._look_and_record()

    def _look_and_record(self) -> bool:
        """Return whether to continue."""
        try:
            number, positions = self._published() or (0, {})
            if lags := self.look(positions):
                self._store.record_lags(self._request.pipeline, self._request.epoch, number, lags)
                if time.monotonic() - self._logged > LOG_SECONDS:
                    self._logged = time.monotonic()
                    for each in lags:
                        log.info("%s", each)
        except FencedError:
            return False
        except Exception as error:
            # The attempt has ended during its last look.
            has_ended = isinstance(error, AirflowFtError) and error.code == "store_closed"
            if not self._has_failed and not has_ended:
                log.info("the lag behind the sources is unknown for now: %s", error)
            self._has_failed = True
        return True
