"""The features of a Delta table's protocol (PROTOCOL.md of delta-io/delta): beside which of them can rows be added?

If a table has another feature, delta-rs answers a commit as if another writer had committed meanwhile. So features are
compared before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from typing import Any

from airflow_ft.protocol.errors import UnfitTargetError

SUPPORTED = frozenset(
    ("appendOnly", "invariants", "timestampNtz", "deletionVectors", "v2Checkpoint", "changeDataFeed",
     "checkConstraints", "generatedColumns", "columnMapping")
)  # fmt: skip
"""Features that delta-rs 1.6 commits beside. Of the last three, and of invariants, nothing may be in use."""
_IDENTITY = 6
"""The writer version that has identity columns, without a list of features."""
_NEWEST_READER, _NEWEST_WRITER = 3, 7


def unfit(what: str, **fields: Any) -> UnfitTargetError:
    """Return the error for a table that only other writers can write."""
    remedy = "Deliver into a table without this feature, and copy the rows from there with Spark."
    return UnfitTargetError(what, code="table_unsupported", remedy=remedy, **fields)


def unsupported(reader: int, writer: int, features: Set[str]) -> Iterator[UnfitTargetError]:
    """Yield what keeps rows from being added, by the protocol of a table: versions, and names of features."""
    implied = {"identityColumns"} if writer == _IDENTITY else set()
    for feature in sorted((features | implied) - SUPPORTED):
        yield unfit(f"the table has the feature {feature!r}, which this sink does not support.", feature=feature)
    if reader > _NEWEST_READER or writer > _NEWEST_WRITER:
        what = f"the table needs readers of version {reader} and writers of version {writer}, which are not supported."
        yield unfit(what, reader=reader, writer=writer)


def feature_of_error(table: str, text: str) -> UnfitTargetError | None:
    """Return the error for a table that delta-rs refuses to open because of a feature; None: it says something else."""
    if match := re.search(r"[Ff]eature '?(\w[\w-]*)'? is not supported", text):
        what = f"{table} has the feature {match[1]!r}, which this sink does not support."
        return unfit(what, table=table, feature=match[1])
    if "catalog-managed" in text:
        what = (
            f"{table} has the feature 'catalogManaged' (a catalog keeps its commits), which this sink does not support."
        )
        return unfit(what, table=table, feature="catalogManaged")
    if "Unsupported table features" in text or "Invalid protocol action" in text:
        return unfit(f"delta-rs cannot write {table}: {text.rstrip('.')}.", table=table)
    return None
