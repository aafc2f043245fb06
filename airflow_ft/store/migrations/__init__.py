"""The versions of the decision log's schema: numbered .sql files, each applied once, in order, in one transaction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING
from uuid import uuid4

from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError

if TYPE_CHECKING:
    from airflow_ft.store.database import Database, Transaction

_NAME = re.compile(r"(\d{4})_\w+\.sql")
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema: `version` counts from 1, `statements` are run in order."""

    version: int
    statements: tuple[str, ...]


@cache
def migrations() -> tuple[Migration, ...]:
    """All steps that this version of the package knows, ascending."""
    found = []
    for entry in resources.files(__name__).iterdir():
        match = _NAME.fullmatch(entry.name)
        if match:
            text = _COMMENT.sub("", entry.read_text(encoding="utf-8"))
            statements = tuple(part.strip() for part in text.split(";") if part.strip())
            found.append(Migration(int(match[1]), statements))
    return tuple(sorted(found, key=lambda migration: migration.version))


def migrate(database: Database, known: tuple[Migration, ...] | None = None) -> str:
    """Brings the schema to the newest version that this package knows; returns the installation's UUID.

    Safe for several processes at once: the steps run in one transaction under the database's schema lock, and who
    comes second finds them done. ConfigurationError when the schema is newer than this package.
    """
    steps = migrations() if known is None else known
    newest = steps[-1].version
    if database.has_schema():
        found = database.read(
            "SELECT value, (SELECT max(version) FROM schema_version) AS version FROM meta WHERE name = 'installation'"
        )
        if found:
            _refuse_newer(database, _version(found), newest)
            if _version(found) == newest:
                return _installation(found)
    try:
        return _migrated(database, steps)
    except AirflowFtError:
        raise
    except Exception as error:  # a driver's: what no environment causes
        raise ConfigurationError(
            f"the schema of the decision log at {database.url} cannot be updated: {type(error).__name__}:"
            f" {' '.join(str(error).split())}.",
            code="schema_unusable",
            remedy="Check whether another program has tables there. Give the decision log its own schema"
            " (?schema=NAME in the URL) or its own SQLite file. Nothing was changed.",
            store=database.url,
        ) from error


def _migrated(database: Database, steps: tuple[Migration, ...]) -> str:
    newest = steps[-1].version
    with database.write() as tx:
        database.lock_schema(tx)
        tx.change("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT PRIMARY KEY, applied_at BIGINT NOT NULL)")
        current = _version(tx.rows("SELECT max(version) AS version FROM schema_version"))
        _refuse_newer(database, current, newest)
        for step in steps:
            if step.version > current:
                _apply(tx, step)
        found = tx.rows("SELECT value FROM meta WHERE name = 'installation'")
        if not found:
            tx.change("INSERT INTO meta (name, value) VALUES ('installation', ?)", str(uuid4()))
            found = tx.rows("SELECT value FROM meta WHERE name = 'installation'")
        return _installation(found)


def is_current(database: Database) -> bool:
    """Return whether there is a decision log of the newest version; changes nothing.

    Raises:
        ConfigurationError: it has another version.
    """
    if not database.has_schema():
        return False
    newest = migrations()[-1].version
    found = _version(database.read("SELECT max(version) AS version FROM schema_version"))
    _refuse_newer(database, found, newest)
    if found < newest:
        raise ConfigurationError(
            f"the decision log at {database.url} has schema version {found}, and this airflow-ft needs {newest}. This"
            " command only reads, so it does not update the schema.",
            code="schema_outdated",
            remedy="Stop all processes of the older version. Then run `airflow ft pipelines`: it updates the schema.",
            store=database.url,
            found=found,
            needed=newest,
        )
    return True


def _apply(tx: Transaction, step: Migration) -> None:
    for statement in step.statements:
        tx.change(statement)
    tx.change("INSERT INTO schema_version (version, applied_at) VALUES (?, ?)", step.version, tx.now())


def _version(rows: list[dict[str, object]]) -> int:
    version = rows[0]["version"]
    return version if isinstance(version, int) else 0


def _installation(rows: list[dict[str, object]]) -> str:
    return str(rows[0]["value"])


def _refuse_newer(database: Database, current: int, newest: int) -> None:
    if current > newest:
        raise ConfigurationError(
            f"the decision log at {database.url} has schema version {current}, and this airflow-ft knows versions up to"
            f" {newest}.",
            code="newer_release",
            remedy="Install the version of airflow-ft that wrote it, or a newer one. If a development version before"
            " 0.1.0 wrote it, make a new decision log: those versions are not upgraded. Nothing was changed.",
            store=database.url,
            found=current,
            known=newest,
        )
