"""The decision log over a database: all operations, the same for SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import Self

from airflow_ft.protocol.meter import Meter
from airflow_ft.store.aborting import AbortingOperations
from airflow_ft.store.adoption import AdoptionOperations
from airflow_ft.store.barriers import BarrierOperations
from airflow_ft.store.completeness import CompletenessOperations
from airflow_ft.store.counting import CountingOperations
from airflow_ft.store.database import Database
from airflow_ft.store.delivery import DeliveryOperations
from airflow_ft.store.epochs import EpochOperations
from airflow_ft.store.migrations import migrate
from airflow_ft.store.overviews import OverviewOperations
from airflow_ft.store.planning import PlanningOperations
from airflow_ft.store.positions import PositionOperations
from airflow_ft.store.quarantine import QuarantineOperations
from airflow_ft.store.reading import ReadingOperations
from airflow_ft.store.reports import ReportOperations
from airflow_ft.store.requests import RequestOperations
from airflow_ft.store.restoring import RestoringOperations
from airflow_ft.store.retention import RetentionOperations
from airflow_ft.store.roots import RootOperations
from airflow_ft.store.rows import to_time
from airflow_ft.store.sharing import SharingOperations
from airflow_ft.store.staging import StagingOperations


class DecisionLog(
    EpochOperations,
    StagingOperations,
    PlanningOperations,
    DeliveryOperations,
    AbortingOperations,
    AdoptionOperations,
    QuarantineOperations,
    RequestOperations,
    RestoringOperations,
    RetentionOperations,
    BarrierOperations,
    SharingOperations,
    ReadingOperations,
    CompletenessOperations,
    PositionOperations,
    CountingOperations,
    OverviewOperations,
    RootOperations,
    ReportOperations,
):
    """The decision log in an SQL database. Safe for threads; in a forked child it opens its own connections.

    Each base class holds the operations of one area, and a function takes the narrowest class or port that it needs.
    `airflow_ft.protocol.decision_log` says what every write promises. Each write is one transaction that locks the
    pipeline's row first; nothing is ever retried silently. Writes to a pipeline or number that does not exist raise
    UnknownPipelineError or UnknownCheckpointError. Usable as a context manager, which closes it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        try:
            self._installation = migrate(database)
            self.know_roots()
        except BaseException:
            database.close()
            raise

    @property
    def installation(self) -> str:
        """UUID (text, 36 characters) born with the store."""
        return self._installation

    @property
    def meter(self) -> Meter:
        """See `EpochLog.meter`."""
        return self._database.meter

    @meter.setter
    def meter(self, meter: Meter) -> None:
        self._database.meter = meter

    @property
    def url(self) -> str:
        """Return where it is, without secrets, for people."""
        return self._database.url

    def now(self) -> datetime:
        """The store's clock, UTC with microseconds."""
        return to_time(self._database.now())

    def close(self) -> None:
        """Closes all connections of this process; every later call raises StoreUnavailableError."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
