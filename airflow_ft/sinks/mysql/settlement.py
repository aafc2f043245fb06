"""Whether a number is settled in the sink, and whether what the sink remembers fits the plan."""

from __future__ import annotations

from airflow_ft.core.model import Fence, Plan
from airflow_ft.sinks.base.memory import Head, Marker, check_settled
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.session import Session


def settled(session: Session, ledger: Ledger, plan: Plan, fence: Fence, head: Head, *, exactly: bool) -> Marker | None:
    """The number's marker, when it is settled; else checks that the head fits the plan. Raises as `check_settled`."""
    marker = ledger.marker(session, plan.number)
    check_settled(
        marker,
        head,
        plan,
        ledger.participant,
        fence,
        exactly=exactly,
        look_again=lambda: ledger.head(session),
    )
    return marker
