"""A process that runs a group of streams, as `StreamGroupOperator` does: `python -m tools.stream_group_task`.

Standard input: the JSON of a list of `tools.stream_task.Stream`, and the restart strategy of their driver.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from airflow_ft.protocol.errors import AirflowFtError, FencedError
from airflow_ft.protocol.noting import note_failure
from airflow_ft.protocol.restart import RestartStrategy
from airflow_ft.spark.task.members import has_successor, keep_trying, run_together
from airflow_ft.spark.task.shared import SharedDriver
from tools.stream_task import Stream, say, start_module


def start_group(
    streams: Sequence[Stream], log: Path, restart: Mapping[str, Any] | None = None
) -> subprocess.Popen[str]:
    """The process of one try of all of them, which writes into `log`. Without `restart`: the operator's default."""
    given = {"streams": [asdict(each) for each in streams], "restart": restart}
    return start_module("tools.stream_group_task", json.dumps(given), log)


def run_group(streams: Sequence[Stream], restart: RestartStrategy | None = None) -> int:
    """Returns how many streams failed."""
    shared = SharedDriver(
        "group",
        restart=restart,
        sources=[source for each in streams for source in each.sources.values()],
        wal_roots=[each.log_root for each in streams],
        on_line=say,
        on_start=lambda driver: say(f"driver {driver.pid}"),
    )

    def work(stream: Stream) -> None:
        def said(line: str) -> None:
            say(f"[{stream.pipeline}] {line}")

        def is_succeeded() -> bool:
            context = stream.context()
            with closing(context.store) as store:
                return has_successor(store, stream.pipeline, context.run, context.worker)

        try:
            keep_trying(lambda _: stream.task(shared=shared, on_line=said), 3, 0.5, lambda: "", is_succeeded)
        except FencedError:
            raise
        except AirflowFtError as error:
            context = stream.context()
            with closing(context.store) as store:
                note_failure(store, stream.pipeline, context.run, error, task_id="group", try_number=stream.try_number)
                store.leave_turn(stream.pipeline, context.run)
            raise

    ends = run_together({each.pipeline: partial(work, each) for each in streams}, shared.kill)
    shared.close()
    for name, error in ends.errors.items():
        say(f"failed {name}: {type(error).__name__}: {error}")
    say(f"ended {len(ends.results)}, failed {len(ends.errors)}")
    return len(ends.errors)


def main() -> int:
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    given = json.load(sys.stdin)
    restart = RestartStrategy.from_json(given["restart"]) if given["restart"] else None
    return min(1, run_group([Stream(**each) for each in given["streams"]], restart))


if __name__ == "__main__":
    raise SystemExit(main())
