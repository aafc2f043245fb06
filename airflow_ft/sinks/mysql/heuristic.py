"""Heuristic outcomes of `xa`: someone ran XA COMMIT for a prepared branch before the decision.

The name is the XA specification's (XA_HEURCOM; XA_HEURMIX when it is a part). The branch cannot be undone then: its
rows are visible. If the checkpoint is committed, this does no harm, and its marker counts as any other. If it would be
aborted, the pipeline halts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sinks.base.memory import Marker
from airflow_ft.sinks.base.prepared import committed_in
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.naming import literal
from airflow_ft.sinks.mysql.session import Session


def committed_early(session: Session, ledger: Ledger, plan: Plan) -> dict[str, Marker]:
    """The visible branches of this installation's number that has no marker of the whole: neither kept nor given up."""
    found = committed_in(ledger.branch_markers(session, plan.number), plan.installation)
    return found if found and ledger.marker(session, plan.number) is None else {}


def describe_early(ledger: Ledger, plan: Plan, found: Mapping[str, Marker], tables: Collection[str]) -> str:
    """For people: what is visible, and the statements that show and that settle it."""
    of = max(int(marker.detail.get("of", 0)) for marker in found.values())
    rows = sum(sum(marker.counts.values()) for marker in found.values())
    name = "XA_HEURCOM" if len(found) == of else "XA_HEURMIX"
    branches = ", ".join(sorted(found))
    where = (
        f"FROM {ledger.table} WHERE `pipeline` = {literal(ledger.pipeline)}"
        f" AND `participant` = {literal(ledger.participant)} AND `number` = {plan.number}"
    )
    placed = f"AND `branch` IN ({', '.join(literal(branch) for branch in sorted(found))})"
    return (
        f"someone committed the branches {branches}{f' of {of}' if of else ''} by hand (XA COMMIT) before the decision"
        f" ({name}): {count_text(rows, 'row is', 'rows are')} visible in {', '.join(sorted(tables))}."
        f" To see the branches: SELECT `branch`, `kind`, `counts`, `at` {where};"
        " To give them up: run XA ROLLBACK for the branches that are still prepared and keep their locks (XA RECOVER)."
        " Then delete those rows (`airflow ft verify` names them) and, in the same transaction, run"
        f" DELETE {where} {placed};"
    )
