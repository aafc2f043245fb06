"""Storage roots that the decision logs of this process know, each with the id that its marker file must hold.

A storage root is the folder of a write-ahead log, or of savepoints. Opening a decision log adds its roots, so that
readers of files can distinguish a lost file from an unavailable root (`airflow_ft.wal.roots`).
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
