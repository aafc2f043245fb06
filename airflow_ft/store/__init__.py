"""The decision log: one implementation in SQL over SQLite (the embedded default) and PostgreSQL.

`open_store(url)` opens it, `find_store(url)` opens it for reads only; `airflow_ft.store.sqlite.SqliteStore` and
`airflow_ft.store.postgres.PostgresStore` are its two classes. Importing this package imports no database driver.

While a pipeline is HALTED, `take_epoch`, `begin_stage`, `trigger`, `publish`, `plan`, `begin_attempt`, `vote` and
`decide` raise PipelineHaltedError: nothing is staged, no sink is touched again, nothing is decided. An epoch is
refused too. Otherwise mere retries would raise the epochs of a store that was restored from a backup past those in the
sinks' heads (R11). A person calls `resume`. Writes that only record the past continue: `record_proof`, `abort`,
`end_stage`, `finalise`, `prune`, `rewind`, leases, turns and all reads.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_ft.store.database import Database
    from airflow_ft.store.decision_log import DecisionLog


def open_store(url: str) -> DecisionLog:
    """Opens the decision log at `url` and brings its schema up to date; `close` it after use.

    - ``sqlite:////absolute/path/ft.db``
    - ``postgresql://user:password@host:port/database?schema=airflow_ft&connect_timeout=10`` with any other parameter
      of libpq; special characters percent-encoded.

    ConfigurationError for a URL that cannot work or a schema newer than this package, StoreUnavailableError when the
    database cannot be reached. Neither ever contains the password.
    """
    from airflow_ft.store.url import parse_url

    parsed = parse_url(url)
    if parsed.path is not None:
        from airflow_ft.store.sqlite import SqliteStore

        return SqliteStore(parsed.path)
    from airflow_ft.store.postgres import PostgresStore

    return PostgresStore(parsed.dsn)


def find_store(url: str) -> DecisionLog | None:
    """As `open_store`, for reads only: creates and migrates nothing. None: there is no store.

    Raises:
        ConfigurationError: also for an older schema.
    """
    from airflow_ft.store.migrations import is_current
    from airflow_ft.store.url import parse_url

    parsed = parse_url(url)
    database: Database
    if parsed.path is not None:
        from airflow_ft.store.sqlite import SqliteDatabase

        if parsed.is_missing:
            return None
        database = SqliteDatabase(parsed.path)
    else:
        from airflow_ft.store.postgres import PostgresDatabase

        database = PostgresDatabase(parsed.dsn)
    with closing(database):
        found = is_current(database)
    return open_store(url) if found else None
