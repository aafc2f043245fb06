"""The stage `sources`: before each fault the stream is stopped, and goes on with other sources: one of them is new, or
left out, or used again, or they have changed places. The fault strikes while that begins.

State counts over all sources, so the judge of `streams` sees what is read twice, left out or counted twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_ft.sources import KafkaSource
from tests.chaos.streams.run import FAULTS, Fault, Streams
from tests.chaos.streams.world import Servers, Task

INPUTS = ("numbers", "others")
CHANGES: Sequence[Sequence[str]] = (("numbers",), ("others",), INPUTS, INPUTS[::-1])
LATEST = 12.0  # seconds behind the start of its Python; until then it goes on from a changed copy of Spark's location


class ChangedSources(Streams):
    """See the module."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._runs = 0
        self._used: Sequence[str] = CHANGES[0]
        self.report.meaning = "each number of both sources once in both sinks, the same rows, state counted once"

    def faults(self) -> Mapping[str, Fault]:
        """Those of streams, each with other sources before."""
        return {name: Fault(name, _after_a_change(fault)) for name, fault in FAULTS.items()}

    def make_servers(self) -> Servers:
        """With a second topic to read."""
        return Servers(self.folder, store=self.store, inputs=INPUTS, wal=self.wal, master=self.master)

    def make_task(self, number: int) -> Task:
        """A try of the newest run."""
        sources = {
            name: KafkaSource(topics=[name], conn_id="kafka", starting_offsets="earliest").to_json()
            for name in self._used
        }
        stream = self.servers.stream(
            job="stream_jobs:TotalsOfAll",
            job_args={"names": list(self._used)},
            sources=sources,
            run=f"run-{self._runs}",
        )
        return Task(self.folder, stream, number)

    def settle(self) -> None:
        """All that was sent is read."""
        if set(self._used) != set(INPUTS):
            self.use(INPUTS)

    def change(self) -> None:
        """Other sources than now."""
        self.use(self.random.choice([each for each in CHANGES if each != self._used]))

    def use(self, names: Sequence[str]) -> None:
        """Stops the stream; a further run has begun, with these sources."""
        self.stopped({})
        self._runs, self._used = self._runs + 1, names
        self._console.say(f"     reads {' and '.join(names)}")
        self.begin()

    def await_driver(self) -> None:
        """Else there would be nothing to kill yet."""
        assert self.task is not None
        while not self.task.python():
            if self.task.is_over:
                self.begin()
            time.sleep(0.05)


def _after_a_change(fault: Fault) -> Callable[[Streams], None]:
    def strike(streams: Streams) -> None:
        assert isinstance(streams, ChangedSources)
        streams.change()
        streams.await_driver()
        time.sleep(streams.random.uniform(0.0, LATEST))
        fault.strike(streams)

    return strike
