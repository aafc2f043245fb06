"""The strategy `local`: marker and all rows of all tables of a server in one local transaction (ATOMIC).

The transaction, in this order, each step safe against dying before or after it:

1. announce: the head is raised and names this session, in a statement of its own (`fencing`);
2. BEGIN; lock the head; still mine? Is the number settled, does the head fit the plan?
3. keep ALTER out of the tables, and compare them with the ones that the vote has judged (`judging`);
4. insert the marker: a later process meets it, and 'duplicate key' means settled, never 'committed' (R1);
5. send the rows; each file's affected rows and warnings are checked;
6. what the server counted goes into the marker, the number into the head; COMMIT.

A process that dies before COMMIT leaves nothing. When COMMIT is not answered, or any other answer is lost, the same
steps run again on a new connection and the marker decides (I6).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.votes import Outcome, Proof, Vote
from airflow_ft.sinks.mysql.fencing import guarded_head
from airflow_ft.sinks.mysql.ledger import settled
from airflow_ft.sinks.mysql.load import Way
from airflow_ft.sinks.mysql.server import ServerParticipant
from airflow_ft.sinks.mysql.vote import Target


class LocalParticipant(ServerParticipant):
    """One server, one transaction. See `airflow_ft.protocol.participant.Participant`."""

    def _deliver(self, plan: Plan, fence: Fence, vote: Vote | None, tries: int, way: Way) -> Proof:
        ledger = self._ledger(plan.pipeline)
        with closing(self._open()) as session:
            self._announce(session, ledger, fence)
            session.begin()
            head = guarded_head(session, ledger, fence, self._nonce)
            marker = settled(session, ledger, plan, fence, head, exactly=True)
            if marker is not None:
                return marker.proof(self._plan.name, plan.number)
            targets = self._fitting(session, plan, vote, way, judge=True)
            detail: dict[str, Any] = {
                "server": session.product,
                "connection": session.id,
                "path": self._path(session, way),
                "attempt": fence.attempt,
                "tries": tries,
                "segments": [segment.number for segment in plan.segments],
                **self._written(targets),
            }
            if self._killed:  # also by the try before this one, whose table had to be judged again
                detail["killed"] = list(self._killed)
            if not ledger.on(session).take_place(plan, fence, Outcome.COMMITTED, detail):
                session.close()
                return self._current_proof(plan)
            counts, detail = self._fill(session, ledger, plan, self._opened(plan), targets, detail, way)
            ledger.on(session).deliver_head(plan.number)
            self._end(session)
        return Proof(self._plan.name, plan.number, Outcome.COMMITTED, plan.digest, fence.epoch, counts, detail)

    def _written(self, targets: Mapping[str, Target]) -> dict[str, Any]:
        """Return what the marker says of the tables."""
        return {"tables": {name: str(target.table.name) for name, target in targets.items()}}
