"""Whether a number is settled in the sink, and whether what the sink remembers fits the plan."""

from __future__ import annotations

from airflow_ft.core.errors import ForeignOwnerError, StoreBehindSinkError
from airflow_ft.core.model import Fence, Plan
from airflow_ft.sinks.mysql.fencing import check_owner
from airflow_ft.sinks.mysql.ledger import Head, Ledger, Marker
from airflow_ft.sinks.mysql.session import Session


def settled(session: Session, ledger: Ledger, plan: Plan, fence: Fence, head: Head, *, exactly: bool) -> Marker | None:
    """The number's marker, when it is settled; else checks that the head fits the plan.

    `head` was read or locked before, and found not to be newer than the fence. `exactly`: the predecessor must have
    been delivered. A vote or a tombstone may come before that.

    Raises:
        StoreBehindSinkError: decision log and sink contradict each other.
        ForeignOwnerError: the marker belongs to another installation.
        FencedError: the head is newer by now.
    """
    marker = ledger.marker(session, plan.number)
    if marker is not None:
        check_marker(marker, plan, fence.installation)
        return marker
    found, expected = head.last_delivered, plan.participant(ledger.participant).predecessor
    if head.floor >= plan.number:
        what = f"its floor is {head.floor}: number {plan.number} was settled and pruned long ago"
    elif found > expected:
        what = f"it delivered number {found} last, the plan of {plan.number} expects {expected}"
    elif exactly and found < expected:
        what = (
            f"it delivered number {found} last, the plan of {plan.number} expects {expected}: the server has"
            " forgotten a delivery (restored from a backup, or failed over to a replica that lagged)"
        )
    else:
        return None
    # A late process halts nothing: the marker may have been pruned since the head was read. Whoever prunes it has
    # delivered a later number, so the head is newer by then.
    check_owner(ledger.head(session), fence)
    raise StoreBehindSinkError(
        f"the decision log and the sink contradict each other: {what}.",
        remedy="find out which of the two is the older one, compare the tables, then `airflow ft resume`.",
    )


def check_marker(marker: Marker, plan: Plan, installation: str) -> None:
    """The marker must be this installation's and of this very plan; raises as `settled` does."""
    if marker.installation != installation:
        raise ForeignOwnerError(
            f"the marker of number {plan.number} belongs to installation {marker.installation}.",
            remedy="bring back that installation's decision log, or take over by `airflow ft adopt`.",
        )
    if marker.digest != plan.digest:
        raise StoreBehindSinkError(
            f"number {plan.number} stands in the sink with other rows (digest {marker.digest[:12]}, the plan's is"
            f" {plan.digest[:12]}): the decision log was restored from a backup.",
            remedy="bring back the newer decision log, or compare both and then `airflow ft resume`.",
        )
