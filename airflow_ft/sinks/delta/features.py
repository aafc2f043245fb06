"""The features of a Delta table's protocol (PROTOCOL.md of delta-io/delta): beside which of them can rows be added?

If a table has another feature, delta-rs answers a commit as if another writer had committed meanwhile. So features are
compared before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

from airflow_ft.core.errors import UnfitTargetError

SUPPORTED = frozenset(
    ("appendOnly", "invariants", "timestampNtz", "deletionVectors", "v2Checkpoint", "changeDataFeed",
     "checkConstraints", "generatedColumns", "columnMapping")
)  # fmt: skip
"""Features that delta-rs 1.6 commits beside. Of the last three, and of invariants, nothing may be in use."""
_IDENTITY = 6
"""The writer version that has identity columns, without a list of features."""
_NEWEST_READER, _NEWEST_WRITER = 3, 7


def unfit(what: str) -> UnfitTargetError:
    """Return the error for a table that only other writers can write."""
    return UnfitTargetError(what, remedy="deliver into a table without, and copy from there by Spark.")


def unsupported(reader: int, writer: int, features: Set[str]) -> Iterator[str]:
    """Yield what keeps rows from being added, by the protocol of a table: versions, and names of features."""
    implied = {"identityColumns"} if writer == _IDENTITY else set()
    for feature in sorted((features | implied) - SUPPORTED):
        yield f"the table has the feature {feature!r}, which is not supported here."
    if reader > _NEWEST_READER or writer > _NEWEST_WRITER:
        yield f"the table needs readers of version {reader} and writers of version {writer}, which are not supported."


def feature_of_error(text: str) -> str | None:
    """Return what an error of delta-rs says of a table that it does not even open; None: nothing of features."""
    if match := re.search(r"[Ff]eature '?(\w[\w-]*)'? is not supported", text):
        return f"has the feature {match[1]!r}, which is not supported here."
    if "catalog-managed" in text:
        return "has the feature 'catalogManaged': a catalog keeps its commits. That is not supported here."
    if "Unsupported table features" in text or "Invalid protocol action" in text:
        return f"cannot be written by delta-rs: {text}."
    return None
