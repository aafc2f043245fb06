"""A stream whose scheduler dies, alone and with the API server: it goes on without them, and nobody works beside it.

One Airflow serves the module; the tests use it one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.integration.airflow_streams import START_SECONDS, Streams, streams_in
from tests.waiting import wait_for
from tools.servers import Kafka, MariaDb, processes

pytestmark = [
    pytest.mark.sampled(among="Airflow"),
    pytest.mark.server,
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

SILENT = 30
"""Seconds after which a scheduler takes a task without heartbeats, or another scheduler, for dead."""
OUTAGE = SILENT + 5.0


@pytest.fixture(scope="module")
def streams(mariadb: MariaDb, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    settings = {
        "scheduler__task_instance_heartbeat_timeout": str(SILENT),
        "scheduler__scheduler_health_check_threshold": str(SILENT),
        "scheduler__orphaned_tasks_check_interval": "5",
    }
    topics = {"numbers": 2, "copies": 2}
    with streams_in(tmp_path_factory.mktemp("airflow"), mariadb, kafka, topics, settings=settings) as found:
        yield found


@pytest.mark.parametrize("lost", [("scheduler",), ("scheduler", "api-server")], ids=" and ".join)
def test_a_stream_runs_on_until_a_new_scheduler_retries_its_task(streams: Streams, lost: tuple[str, ...]) -> None:
    airflow = streams.airflow
    run_id = streams.start()
    first, epoch, tries = streams.task(), streams.epoch(), streams.tries(run_id)
    airflow.kill(*lost)
    back = time.monotonic() + OUTAGE
    for _ in range(3):
        streams.deliver()
    wait_for(lambda: time.monotonic() > back, 2 * OUTAGE, "whoever is silent counts as dead")
    streams.deliver()
    assert (streams.task(), streams.epoch(), streams.epochs()[-1]) == (first, epoch, epoch), "its one driver goes on"

    airflow.start_again(*lost)
    wait_for(lambda: streams.tries(run_id) > tries, START_SECONDS, "the new scheduler begins another try", 0.5)
    wait_for(lambda: streams.epoch() > epoch, START_SECONDS, "which is at work")
    assert processes.await_end([first.pid], START_SECONDS), "the old one has ended"
    streams.deliver()
    assert streams.task() != first
    streams.stop("copy")
    assert airflow.finish("copy", run_id)["copy.stream"] == "success"
    streams.check_both_sinks()
    wrote = streams.epochs()
    assert wrote == sorted(wrote) and wrote[-1] > epoch, "no older one wrote after a newer one"
