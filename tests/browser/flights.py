"""A pipeline as one that has run for hours, for the pictures of the documentation."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.protocol.model import ParticipantPlan, Plan, Promise, RunKey, Segment
from airflow_ft.protocol.votes import Proof
from airflow_ft.store.decision_log import DecisionLog
from tests.store.scene import Scene, a_position

FLIGHTS = "flights"
_RUN = RunKey(FLIGHTS, "scheduled__2026-01-02T06:00:00+00:00")
COUNT = 48
_EVERY = 300
"""Seconds between two runs."""
_TAKES = {"staged_at": 21.0, "prepared_at": 4.0, "decided_at": 0.1, "completed_at": 2.6}
"""Seconds of each step, about."""
_SINKS: Mapping[str, Mapping[str, str]] = {
    "flights": {
        "kind": "mysql",
        "conn_id": "mysql_default",
        "strategy": "local",
        "promise": "ATOMIC",
        "table": "air.flights",
    },
    "late": {
        "kind": "kafka",
        "conn_id": "kafka_default",
        "strategy": "transaction",
        "promise": "REDO",
        "topic": "flights.late",
    },
}
_SPEC = {
    "pipeline": FLIGHTS,
    "job": "jobs.flights",
    "job_args": {"late_minutes": 60},
    "streaming": False,
    "sources": {"flights": {"kind": "kafka", "topics": ["flights.departed"], "conn_id": "kafka_default"}},
    "sinks": _SINKS,
    "checkpointing": {"timeout": 600, "num_retained": 3},
    "spark_conf": {"spark.driver.memory": "1g"},
    "configured": ["checkpointing.timeout"],
}


class Flights(Scene):
    """Each checkpoint brings some thousand rows into MySQL, and some of them into Kafka."""

    def __init__(self, store: DecisionLog) -> None:
        super().__init__(store, FLIGHTS)
        self.chance = random.Random(7)
        self._rows: dict[int, dict[str, int]] = {}
        self.promises = {sink["conn_id"]: Promise(sink["promise"]) for sink in _SINKS.values()}

    def publish(self, number: int, **_: Any) -> None:
        rows = self._rows[number] = {"flights": self.chance.randint(2_800, 5_200), "late": self.chance.randint(90, 240)}
        where = f"file:///data/airflow_ft/wal/flights/{number:06}"
        log = Segment(number, f"{number:064x}", where, rows, 38 * rows["flights"])
        end = {"flights.departed": {str(partition): 2_000 * number + 7 * partition for partition in range(2)}}
        self.store.publish(FLIGHTS, self.epoch, number, number - 1, log, a_position(number), {"flights": {"end": end}})

    def make_plan(self, number: int, segments: Sequence[int] | None = None) -> Plan:
        log = self.checkpoint(number).segment
        assert log is not None
        participants = tuple(
            ParticipantPlan(
                sink["conn_id"], sink["kind"], sink["strategy"], Promise(sink["promise"]), number - 1, {name: {}}
            )
            for name, sink in _SINKS.items()
        )
        first = participants[0].name
        reasons = (f"{first} decides: it commits by itself, and can be asked what it has committed",)
        return Plan(FLIGHTS, self.store.installation, number, (log,), participants, first, reasons)

    def proof(self, number: int, participant: str) -> Proof:
        [sink] = [name for name, each in _SINKS.items() if each["conn_id"] == participant]
        return replace(super().proof(number, participant), counts={sink: self._rows[number][sink]})


def write(store: DecisionLog, file: Path) -> None:
    """All of it, into the decision log in `file`."""
    scene = Flights(store)
    scene.stage(COUNT, _RUN, made_with=_SPEC)
    for number in range(1, COUNT + 1):
        scene.complete(number)
    store.record_lags(FLIGHTS, scene.epoch, COUNT, [Lag("flights", Unit.RECORDS, 1_840)])
    with closing(sqlite3.connect(file)) as database, database:
        [(now,)] = database.execute("SELECT max(completed_at) FROM checkpoint")
        for number in range(1, COUNT + 1):
            times = [now - round(1e6 * (_EVERY * (COUNT - number) + 90))]
            for seconds in _TAKES.values():
                times.append(times[-1] + round(1e6 * seconds * scene.chance.uniform(0.8, 1.5)))
            set_ = ", ".join(f"{name} = ?" for name in ("triggered_at", *_TAKES))
            database.execute(
                f"UPDATE checkpoint SET {set_} WHERE pipeline = ? AND number = ?", (*times, FLIGHTS, number)
            )
            database.execute(
                "UPDATE event SET at = ? WHERE pipeline = ? AND number = ? AND kind = 'FINALISED'",
                (times[-1] + round(1e6 * scene.chance.uniform(0.3, 0.5)), FLIGHTS, number),
            )
