"""The stage `at-most-once`: the faults of `streams`, over a stream that may lose rows, and only there.

A fault has a window: it begins behind what was published when it struck, and ends when something is confirmed that was
sent after it. Numbers that are in no sink have to be in such a window, or before the first attempt began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ft.sources import KafkaSource
from airflow_ft.store.decision_log import DecisionLog
from tests.chaos.streams.run import Fault, Streams
from tests.chaos.streams.world import PARTITIONS, PIPELINE, Row, Task, ends, in_order, in_sinks, judge_epochs

_LOOKED_AT = 50  # newest checkpoints


@dataclass(frozen=True)
class Window:
    """Of a fault: `first` are offsets by partition, `until` a number."""

    first: tuple[int, ...]
    until: int

    def holds(self, number: int) -> bool:
        """Whether the number may be lost."""
        return number // PARTITIONS >= self.first[number % PARTITIONS] and number < self.until


class AtMostOnce(Streams):
    """See the module."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.windows: list[Window] = []
        self.report.meaning = "no number twice, the same rows in both sinks, none lost but where a fault was"

    def make_task(self, number: int) -> Task:
        """A try that begins where its source stands."""
        source = KafkaSource(topics=["numbers"], conn_id="kafka", starting_offsets="latest")
        stream = self.servers.stream(
            sources={"numbers": source.to_json()}, checkpointing={"interval": 0.5, "mode": "AT_MOST_ONCE"}
        )
        return Task(self.folder, stream, number)

    def strike(self, store: DecisionLog, fault: Fault) -> None:
        """Also waits for something that was sent behind it."""
        assert self.feeder is not None
        first = _published(store)
        super().strike(store, fault)
        window = Window(first, self.feeder.sent)
        while not _has_reached(store, window.until):
            self.await_task(store)
        self.windows.append(window)

    def judge(self, sent: int) -> list[str]:
        """See the module."""
        rows, records, problems = in_sinks(self.servers)
        lost = sent - len({row[0] for row in rows})
        self._console.plain(f"  {lost:,} of {sent:,} numbers were lost")
        return problems + judge_losses(rows, records, in_order(self.wrote, self.servers), sent, self.windows)


def judge_losses(
    rows: list[Row], records: list[Row], epochs: list[int], sent: int, windows: Sequence[Window]
) -> list[str]:
    """What is wrong in the table's rows and the topic's records, of numbers that may be lost in windows alone."""
    problems = judge_epochs(epochs)
    found = Counter(row[0] for row in rows)
    if duplicated := [n for n, count in found.items() if count > 1]:
        problems.append(f"{len(duplicated)} are duplicated")
    if foreign := found.keys() - set(range(sent)):
        problems.append(f"{len(foreign)} are foreign")
    first = [min((n for n in found if n % PARTITIONS == each), default=sent) for each in range(PARTITIONS)]
    lost = [n for n in range(sent) if n not in found and n > first[n % PARTITIONS]]
    if wrong := [n for n in lost if not any(window.holds(n) for window in windows)]:
        problems.append(f"{len(wrong)} are lost where no fault was, {wrong[:3]} above all")
    if differ := (Counter(rows) - Counter(records)) + (Counter(records) - Counter(rows)):
        problems.append(f"{differ.total()} rows differ between the two sinks")
    return problems


def _published(store: DecisionLog) -> tuple[int, ...]:
    """The offsets behind the newest checkpoint that was published."""
    for each in store.checkpoints(PIPELINE, _LOOKED_AT):
        if each.segment is not None and (reached := ends(each)):
            return tuple(reached["numbers"].get(str(partition), 0) for partition in range(PARTITIONS))
    raise RuntimeError(f"none of the newest {_LOOKED_AT} checkpoints was published")


def _has_reached(store: DecisionLog, number: int) -> bool:
    latest = store.latest_confirmed(PIPELINE)
    return latest is not None and sum(ends(latest).get("numbers", {}).values()) >= number
