"""Compare the tables with the log's rows, also after others have compacted their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, Sent, SinkReport, by_target
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.base.table_format import compared
from airflow_ft.sinks.files.failures import translated_errors
from airflow_ft.sinks.paimon.columns import FORMAT
from airflow_ft.sinks.paimon.reading import batches
from airflow_ft.sinks.paimon.spec import PaimonSink
from airflow_ft.sinks.paimon.table import Place, Version
from airflow_ft.sinks.set_aside import DeliveredLog


def verify(
    delivered: Sequence[Delivered],
    plan: ParticipantPlan,
    connection: ConnectionInfo,
    wal: WalReader,
    *,
    full: bool = False,
) -> list[SinkReport]:
    """One report a table. SinkUnavailableError, SinkAccessError, WalCorruptError: nothing could be compared."""
    log = DeliveredLog.of(wal, delivered)
    sent = by_target(delivered, plan.name, lambda given: str(given["table"]))
    return [
        _verify(of_table, plan.name, Place.of(PaimonSink.from_settings(plan.name, {"table": table}).path), log)
        for table, of_table in sent.items()
    ]


def _verify(sent: Sequence[Sent], participant: str, place: Place, log: DeliveredLog) -> SinkReport:
    report = SinkReport.begun(participant, (name for _, name in sent), str(place), [each for each, _ in sent])
    with translated_errors(str(place), participant=participant):
        there = Version.newest(place)
        if there is not None and (problems := list(there.oddities())):  # some of its rows may be deleted elsewhere
            return replace(report, error=problems[0].what)
        columns = there.columns if there is not None else None
        return compared(sent, report, log, FORMAT, columns, lambda names: batches(there, names))
