"""The invariants of a sink whose rows become visible branch by branch (MySQL `xa`, PostgreSQL `prepared`).

Rows of a branch come with that branch's marker, those of a number together are what was planned, and the marker of the
whole comes when all are there: only then may the next number begin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ft.protocol.model import Checkpoint, Plan
from tests.simulation.kernel import Violation
from tests.simulation.mysql_server import MySqlServer
from tests.simulation.mysql_state import BranchName, Commit
from tests.simulation.prepared_server import PreparedServer
from tests.simulation.source import Item

Rows = list[tuple[str, Item]]


class BranchLaws:
    """Remembers what each number has shown by branch, and which are whole."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, int], dict[str, Rows]] = {}
        self._whole: set[tuple[str, int]] = set()
        self._aside: dict[tuple[str, int], Rows] = {}  # what the markers of branches say was set aside

    def look_at(
        self,
        name: str,
        plan: Plan,
        planned: Rows,
        marker: Mapping[str, Any],
        commit: Commit,
        aside: Rows,
        *,
        by_hand: bool = False,
    ) -> None:
        """A commit with the marker of a branch, or of the whole (I2, I4, I6), which has set rows `aside`."""
        number, label = marker["number"], marker["branch"]
        shown = self._shown.setdefault((name, number), {})
        before = [row for rows in shown.values() for row in rows]
        rows = list(commit.rows)
        if not label:
            if rows:
                raise Violation("I6", f"{name} shows {rows_text(rows)} under the marker of the whole number {number}")
            of_branches = self._aside.get((name, number), [])
            if sorted(aside, key=str) != sorted(of_branches, key=str):
                raise Violation(
                    "I2", f"{number} of {name} has set aside {rows_text(aside)}, its branches {rows_text(of_branches)}"
                )
            if sorted(before + aside, key=str) != sorted(planned, key=str):
                raise Violation(
                    "I2", f"{name} calls {number} whole with {rows_text(before)}; planned is {rows_text(planned)}"
                )
            self._whole.add((name, number))
            return
        if label in shown or [row for row in rows if row not in planned or row in before]:
            raise Violation(
                "I2", f"{name} shows {rows_text(rows)} in branch {label} of {number}, beside {rows_text(before)}"
            )
        predecessor = 0 if by_hand else plan.participant(name).predecessor
        if predecessor and (name, predecessor) not in self._whole:
            raise Violation("I4", f"{name} shows rows of {number} before {predecessor} is whole")
        shown[label] = rows
        self._aside.setdefault((name, number), []).extend(aside)

    def look_at_prepared(self, name: str, branch: BranchName, checkpoint: Checkpoint) -> None:
        """A prepared branch that was committed is one that the decision counted (I3)."""
        counted = checkpoint.votes[name].prepared
        if branch.rank[1] != counted:
            raise Violation("I3", f"{name} committed branch {branch}; the decision counted attempt {counted}")

    def taken_out(self, name: str, number: int) -> None:
        """Somebody has deleted what was committed by hand."""
        self._shown.pop((name, number), None)

    def taken_back(self, name: str, commit: Commit) -> None:
        """A crash has made a committed branch a prepared one again."""
        assert commit.branch is not None
        self._shown.get((name, commit.branch.number), {}).pop(commit.branch.label, None)  # none: a preflight

    def look_at_decided(self, name: str, server: MySqlServer | PreparedServer, checkpoint: Checkpoint) -> None:
        """R7: what the decision counts is there."""
        vote = checkpoint.votes[name]
        if server.branches.were_lost or "branches" not in vote.notes or (name, checkpoint.number) in self._shown:
            return
        if not vote.prepared and checkpoint.plan is not None and checkpoint.plan.commit_point:
            return  # a sink has decided, and a late attempt had taken this vote back
        rank = (int(vote.notes["epoch"]), vote.prepared)
        counted = {BranchName(checkpoint.number, rank, label) for label in vote.notes["branches"]}
        if gone := counted - set(server.branches.names()):
            raise Violation("I3", f"checkpoint {checkpoint.number} is decided, and {', '.join(map(str, gone))} is gone")


def rows_text(rows: Rows) -> str:
    """The rows in few words."""
    return "[" + ", ".join(str(item) for _, item in rows) + "]"
