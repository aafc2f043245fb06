"""The strategy `local`: marker and all rows of all tables of a server in one local transaction (ATOMIC).

The transaction, in this order, each step safe against dying before or after it:

1. announce: the head is raised and names this session, in a statement of its own (`fencing`);
2. BEGIN; lock the head; still mine? Is the number settled, does the head fit the plan?
3. keep ALTER out of the tables, and compare them with the ones that the vote has judged (`judging`);
4. send the rows; each file's affected rows and warnings are checked;
5. insert the marker with what the server counted, write the number into the head; COMMIT.

A process that dies before COMMIT leaves nothing. When COMMIT is not answered, or any other answer is lost, the same
steps run again on a new connection and the marker decides (I6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.mysql.server import ServerParticipant
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.vote import Target
from airflow_ft.sinks.refused import Refused


class LocalParticipant(ServerParticipant):
    """One server, one transaction. See `airflow_ft.protocol.participant.Participant`."""

    def __init__(self, *opened: Any) -> None:
        super().__init__(*opened)
        self._sent: Mapping[str, Any] = {}  # what the marker says of session and tables

    def _insert(
        self, db: Session, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None
    ) -> dict[str, int]:
        targets = self._fitting(db, plan, readers, judge=True)
        self._sent = {"server": db.product, "connection": db.id, "path": self._path(db), **self._written(targets)}
        counts = self._send_all(db, plan, readers, targets, dead_letters)
        db.require_begun()
        return counts

    def _detail(self, plan: Plan, fence: Fence) -> dict[str, Any]:
        killed = {"killed": list(self._killed)} if self._killed else {}
        return {**super()._detail(plan, fence), **self._sent, "tries": self._tries, **killed}

    def _written(self, targets: Mapping[str, Target]) -> dict[str, Any]:
        """Return what the marker says of the tables."""
        return {"tables": {name: str(target.table.name) for name, target in targets.items()}}
