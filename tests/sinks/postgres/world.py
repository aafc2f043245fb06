"""A table of a real PostgreSQL server, for tests of the sink."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.participant import Participant
from airflow_ft.sinks.base.prepared import owner_of
from airflow_ft.sinks.postgres.gid import Gid, listed
from airflow_ft.sinks.postgres.participant import open_participant
from airflow_ft.sinks.postgres.session import Limits, Session
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.testing.world import OURS, Target, World
from airflow_ft.wal import open_wal
from tools.servers import Database, Postgres

QUICK = Limits(lock_wait=0.3, head_wait=3)


class Table(Target):
    """A table, made by `ddl`."""

    def __init__(self, database: Database, ddl: str = "", **settings: Any) -> None:
        server = database.server
        assert isinstance(server, Postgres)
        self.database = database
        self.sink = PostgresSink(**{"table": "orders", "conn_id": "shop", **settings})
        self.connection = ConnectionInfo(
            "shop", "postgres", server.host, server.port, server.user, server.password, database.name
        )
        if ddl:
            self.sql(ddl)

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.database.sql(statement, values)

    def ids(self) -> list[int]:
        return [row[0] for row in self.sql("SELECT id FROM orders ORDER BY id")]

    def prepared(self, world: World, installation: str = OURS) -> list[Gid]:
        """What stands in pg_prepared_xacts."""
        session = Session(self.connection, QUICK)
        try:
            return listed(session, owner_of(installation, world.pipeline, "shop"))
        finally:
            session.close()


def table_of(world: World) -> Table:
    assert isinstance(world.target, Table)
    return world.target


def quick(world: World, plan: ParticipantPlan | None = None, **limits: Any) -> Participant:
    """A participant that does not wait for long."""
    table = table_of(world)
    found = open_participant(plan or world.participant_plan(), table.connection, open_wal(), replace(QUICK, **limits))
    world.opened.append(found)
    return found
