"""Airflow with CeleryExecutor, PostgreSQL and Redis: each component by itself, and a worker that can be replaced."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.demo.airflow import Airflow
from tools.servers import Postgres, Redis, processes

BESIDE = (("scheduler",), ("dag-processor",), ("triggerer", "--skip-serve-logs"))
"""The components beside API server and worker."""
WORKER = ("celery", "worker", "--skip-serve-logs")  # the API server reads the files of logs by itself
METADATA, RESULTS, STORE = "airflow", "results", "airflow_ft"


class CeleryAirflow(Airflow):
    """`Airflow` whose tasks are run by a Celery worker, two at a time, in the place of `airflow standalone`.

    That one takes LocalExecutor whatever the settings say. PostgreSQL has Airflow's metadata, Celery's results and the
    decision log, each in a database of its own; Redis is the broker. Both are started and ended with it.
    """

    command_line = ("api-server",)

    def __init__(self, home: Path, connections: Mapping[str, Mapping[str, Any]], settings: Mapping[str, str]) -> None:
        self.postgres = Postgres(home / "postgres")
        self.redis = Redis(home / "redis")
        self._worker: subprocess.Popen[bytes] | None = None
        store = {
            "conn_type": "postgres",
            "host": self.postgres.host,
            "port": self.postgres.port,
            "login": self.postgres.user,
            "password": self.postgres.password,
            "schema": STORE,
        }
        super().__init__(
            home,
            {**connections, "ft_store": store},
            {
                "core__executor": "CeleryExecutor",
                "database__sql_alchemy_conn": self._database(METADATA, "postgresql+psycopg2"),
                "celery__broker_url": f"redis://:{self.redis.password}@{self.redis.host}:{self.redis.port}/0",
                "celery__result_backend": self._database(RESULTS, "db+postgresql+psycopg2"),
                "celery__worker_concurrency": "2",
                # A worker loads no plugin of Airflow, and so knows nothing of [airflow_ft] preload.
                "celery__extra_celery_config": '{"imports": ["airflow_ft.operators.preload"]}',
                # Redis delivers a message again when it is not acknowledged for so long, as none is before its task has
                # ended: so that of the killed worker comes again within the run.
                "celery_broker_transport_options__visibility_timeout": "15",
                "airflow_ft__store": "ft_store",
                **settings,
            },
        )

    def _database(self, name: str, scheme: str = "postgresql") -> str:
        server = self.postgres
        return f"{scheme}://{server.user}:{server.password}@{server.host}:{server.port}/{name}"

    @property
    def store_url(self) -> str:
        """The decision log, which is in PostgreSQL."""
        return self._database(STORE)

    def _make_database(self) -> None:
        self.postgres.start()
        for name in (METADATA, RESULTS, STORE):
            self.postgres.sql(f"CREATE DATABASE {name}")
        self.redis.start()
        self.command("db", "migrate")

    def start(self) -> None:
        """Returns when the servers answer and all components are started; `wait_until_ready` waits for these."""
        super().start()
        for component in BESIDE:
            self._spawn(*component)
        self._worker = self._spawn(*WORKER)

    def replace_worker(self) -> int:
        """Ends the worker by kill -9, with all that it runs, as when its container is lost; starts another.

        Returns the process id of the one that was killed.
        """
        assert self._worker is not None, "start() starts it"
        killed = processes.tree(self._worker.pid)[1]
        self._end(self._worker)
        self._worker = self._spawn(*WORKER)
        return killed

    def stop(self) -> None:
        """Also the servers."""
        super().stop()
        self.redis.stop()
        self.postgres.stop()
