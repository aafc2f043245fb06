"""The storage roots that the decision logs of this process know, with the id that each root's marker file has to hold.

A storage root is the folder of a write-ahead log, or of savepoints. Opening a decision log adds what it remembers, so
that any reader of files can tell a lost file from a root that is away (`airflow_ft.wal.roots`).
"""

from __future__ import annotations

_known: dict[str, frozenset[str]] = {}


def know(uri: str, id: str) -> None:
    """Remember that the marker of the root at `uri` holds `id`; logs that share a root may each know another id."""
    _known[uri] = _known.get(uri, frozenset()) | {id}


def root_of(uri: str) -> tuple[str, frozenset[str]] | None:
    """Return the innermost known root at or above `uri`, and the ids that its marker may hold; None: none is known."""
    if not _known:
        return None
    above = [root for root in _known if uri == root or uri.startswith(f"{root.rstrip('/')}/")]
    return (found := max(above, key=len), _known[found]) if above else None
