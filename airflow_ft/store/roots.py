"""The memory of the decision log for storage roots: the id in the marker of each (`airflow_ft.wal.roots`)."""

from __future__ import annotations

from airflow_ft.protocol.known_roots import know
from airflow_ft.store.database import Database

_PREFIX = "root "
"""Prefix of names in the table `meta`; the root's URI follows."""
_BASES = "SELECT name, base_location FROM pipeline ORDER BY name"
_OPEN = "SELECT segment_location FROM checkpoint WHERE pipeline = ? AND is_open = 1"


class RootOperations:
    """The part of the store for storage roots."""

    _database: Database

    def know_roots(self) -> None:
        """Register all roots that the log remembers in this process."""
        for row in self._database.read(
            "SELECT name, value FROM meta WHERE substr(name, 1, ?) = ?", len(_PREFIX), _PREFIX
        ):
            know(str(row["name"]).removeprefix(_PREFIX), str(row["value"]))

    def root(self, uri: str) -> str | None:
        """See `RootLog.root`."""
        found = self._database.read("SELECT value FROM meta WHERE name = ?", f"{_PREFIX}{uri}")
        return str(found[0]["value"]) if found else None

    def remember_root(self, uri: str, id: str) -> str:
        """See `RootLog.remember_root`."""
        name = f"{_PREFIX}{uri}"
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
