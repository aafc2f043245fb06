"""What stays up over all kills: one Kafka, one MariaDB, one Airflow, and the demonstration's DAG in small."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.chaos.airflow import ChaosAirflow
from tests.chaos.decision_log import DecisionLog
from tests.chaos.outside import Outside
from tools.demo.console import Console
from tools.demo.loader import load
from tools.demo.run import DATABASE, PIPELINE, PROJECT, USER, Demo, Options

CHECKPOINTS = 4  # of a run
DELIVERIES = 2  # of a run: several checkpoints are delivered as one
RETAINED = (
    12  # delivered checkpoints: more than two runs make, so that every marker can be looked at before it is pruned
)
FLIGHTS = 336_776


@dataclass(frozen=True)
class Size:
    """How many flights a run gets."""

    flights: int = 2400

    @property
    def per_checkpoint(self) -> int:
        """Spark divides it among the topic's partitions and rounds down: a few more, or a tiny checkpoint is left."""
        return -(-self.flights // CHECKPOINTS) + CHECKPOINTS

    @property
    def per_delivery(self) -> int:
        """Rows over both sinks: a checkpoint's flights, and those among them that are late (fewer than a third)."""
        return self.per_checkpoint * CHECKPOINTS // DELIVERIES * 4 // 3


class World(Demo):
    """The demonstration's servers and Airflow; flights are loaded slice by slice. `close` ends all of it."""

    def __init__(self, folder: Path, size: Size, console: Console) -> None:
        self._size = size
        super().__init__(Options(folder, flights=0), console)
        self.airflow: ChaosAirflow = ChaosAirflow(self.home, self._connections(), self._settings())
        self.log = DecisionLog(self.home / "airflow_ft" / "ft.db", PIPELINE)
        self._open.callback(self.log.close)

    @property
    def loaded(self) -> int:
        """How many flights are in the topic: the first ones of the year."""
        return self.options.flights or 0

    def start(self) -> None:
        """Starts everything; the topics are empty."""
        self._start()

    def load(self) -> None:
        """Loads the next slice."""
        first, last = self.loaded, self.loaded + self._size.flights
        if last > FLIGHTS:
            raise ValueError(f"there are no more than {FLIGHTS:,} flights")
        self.options = replace(self.options, flights=last)
        load(self.kafka.bootstrap, "flights", last, skip=first)

    def judge(self) -> Mapping[str, Any]:
        """The demonstration's judge on all flights that were loaded; see `tools.demo.judge`."""
        return self._judge()

    def outside(self) -> Outside:
        """Own SQL and own consumers."""
        mysql = {
            "host": self.mariadb.host,
            "port": self.mariadb.port,
            "user": USER,
            "password": self.password,
            "database": DATABASE,
        }
        return Outside(mysql, self.kafka.bootstrap, PIPELINE)

    def _settings(self) -> Mapping[str, str]:
        spark = '{"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2", "spark.master": "local[2]"}'
        return {
            **super()._settings(),
            "airflow_ft__spark_conf": spark,
            "airflow_ft__lease_seconds": "10",  # 30 by default; nothing rests on it but the time that a take-over takes
        }

    def _start_kafka(self) -> None:
        self._open.callback(self.kafka.stop)
        self.kafka.start()
        for topic in ("flights", "delays"):
            self.kafka.create_topic(topic, partitions=2)
        self.console.say(f"Kafka is ready on port {self.kafka.port}")

    def _write_dag(self) -> None:
        """The example DAG with other numbers: a run has several checkpoints and deliveries though it is small."""
        text = (PROJECT / "dags" / "flights.py").read_text()
        for setting, value in (
            ("max_offsets_per_trigger", str(self._size.per_checkpoint)),
            ("max_delivery_rows", f"{self._size.per_delivery}, num_retained={RETAINED}"),
        ):
            text, found = re.subn(rf"{setting}=[\d_]+", f"{setting}={value}", text)
            if found != 1:
                raise ValueError(f"dags/flights.py sets {setting} {found} times")
        self.airflow.dags.mkdir(parents=True, exist_ok=True)
        (self.airflow.dags / "flights.py").write_text(text)
