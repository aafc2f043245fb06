"""The decision log over a database: all operations, the same for SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import Self

from airflow_ft.protocol.known_roots import know
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
from airflow_ft.store.rows import to_time
from airflow_ft.store.staging import StagingOperations

_ROOT = "root "
"""Prefix of names in the table `meta`; the root's URI follows."""
_BASES = "SELECT name, base_location FROM pipeline ORDER BY name"
_OPEN = "SELECT segment_location FROM checkpoint WHERE pipeline = ? AND is_open = 1"


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
    ReadingOperations,
    CompletenessOperations,
    PositionOperations,
    CountingOperations,
    OverviewOperations,
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

    def know_roots(self) -> None:
        """Register all roots that the log remembers in this process."""
        for row in self._database.read("SELECT name, value FROM meta WHERE substr(name, 1, ?) = ?", len(_ROOT), _ROOT):
            know(str(row["name"]).removeprefix(_ROOT), str(row["value"]))

    def root(self, uri: str) -> str | None:
        """See `RootLog.root`."""
        found = self._database.read("SELECT value FROM meta WHERE name = ?", f"{_ROOT}{uri}")
        return str(found[0]["value"]) if found else None

    def remember_root(self, uri: str, id: str) -> str:
        """See `RootLog.remember_root`."""
        name = f"{_ROOT}{uri}"
        with self._database.write() as tx:
            tx.change("INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING", name, id)
            return str(tx.rows("SELECT value FROM meta WHERE name = ?", name)[0]["value"])

    def locations_below(self, uri: str) -> frozenset[str]:
        """See `RootLog.locations_below`. A look-up for each pipeline: it is asked once in the life of a root."""
        below = f"{uri.rstrip('/')}/"
        found: set[str] = set()
        for row in self._database.read(_BASES):
            opened = self._database.read(_OPEN, row["name"])
            found |= {row["base_location"] or "", *(each["segment_location"] or "" for each in opened)}
        return frozenset(each for each in found if each.startswith(below))

    def close(self) -> None:
        """Closes all connections of this process; every later call raises StoreUnavailableError."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
