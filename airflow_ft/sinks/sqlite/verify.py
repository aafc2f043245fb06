"""Find out which of the log's rows the tables really hold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, SinkReport
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.base.comparison import compare_tables, rows_of
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.sqlite.columns import read_columns, values
from airflow_ft.sinks.sqlite.file import SqliteFile
from airflow_ft.sinks.sqlite.spec import SqliteSink, fold


def verify(
    delivered: Sequence[Delivered], plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader
) -> list[SinkReport]:
    """Return one report for each table, also if its plans and sinks were renamed.

    SinkUnavailableError, SinkAccessError, WalCorruptError: nothing could be compared.
    """
    file = SqliteFile.of(connection)
    with file.opened(participant=plan.name) as db:
        if db is None:
            raise SinkUnavailableError(
                f"the file {file.path} does not exist.",
                code="file_missing",
                remedy=f"Restore {file.path}.",
                participant=plan.name,
                path=str(file.path),
            )
        return compare_tables(
            delivered,
            plan,
            wal,
            table=lambda given: fold(SqliteSink.from_settings(plan.name, plan.strategy, given).table),
            columns=partial(read_columns, db),
            found=lambda name, columns: rows_of(db, f"SELECT {', '.join(map(quoted, columns))} FROM {quoted(name)}"),
            values=lambda batch: zip(*values(batch), strict=True),
            fold=fold,
        )
