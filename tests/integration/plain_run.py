"""A run without Airflow, in a process of its own: `python -m tests.integration.plain_run FOLDER RUN_ID PLACE`.

PLACE: where it kills itself, "": nowhere.
"""

import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import airflow_ft as ft
from airflow_ft.protocol import steps
from airflow_ft.sinks.sqlite import participant

PLACES = (
    "when it begins to compute",
    "when a checkpoint is published",
    "before prepare",
    "after prepare",
    "before the transaction",
    "after the transaction",
    "before confirm",
    "after confirm",
)


@ft.job
class Orders:
    def transform(self, spark, sources):
        return sources["orders"]

    def split(self, batch):
        return {"even": batch.where("id % 2 = 0"), "odd": batch.where("id % 2 = 1")}


def main(folder: str, run_id: str, place: str) -> None:
    if place:
        _die_at(place)
    result = ft.run(
        pipeline="orders",
        job=Orders,
        sources={"orders": ft.FileSource(path=f"{folder}/in", schema="id bigint", max_files_per_trigger=1)},
        sinks={name: ft.SqliteSink(table=name, conn_id="shop") for name in ("even", "odd")},
        spark_master="local[2]",
        spark_conf={"spark.driver.memory": "700m"},
        run_id=run_id or None,
    )
    print(json.dumps(result))


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_at(place: str) -> None:
    when, _, what = place.partition(" ")
    if when == "when":
        line = "columns of the job" if "begins" in what else r"checkpoint \d+ published"
        logger = logging.getLogger("airflow_ft.spark")
        logger.setLevel(logging.DEBUG)
        logger.addFilter(lambda record: not re.match(line, record.getMessage()) or bool(_die()))
    elif what == "the transaction":
        _around(participant.SqliteParticipant, "commit", when)
    else:
        _around(steps, f"{what}_step", when)


def _around(holder: Any, name: str, when: str) -> None:
    do: Callable[..., Any] = getattr(holder, name)

    @wraps(do)
    def wrapped(*given: Any, **named: Any) -> Any:
        if when == "before":
            _die()
        found = do(*given, **named)
        _die()
        return found

    setattr(holder, name, wrapped)


if __name__ == "__main__":
    main(*sys.argv[1:])
