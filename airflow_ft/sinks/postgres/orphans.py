"""Markers and prepared transactions of former owners of a pipeline: listed, and ended as a person decides.

Former owners are those that the pipeline's head or its ledger rows name. Prepared transactions are found by the hash
of exactly those installations: no other one is touched (I8).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from airflow_ft.protocol.errors import ForeignOwnerError, StateConflictError
from airflow_ft.protocol.model import Fence
from airflow_ft.protocol.orphans import Orphan, OrphanKind, PreparedEnding
from airflow_ft.sinks.base.prepared import PROBE_NUMBER, marked_orphans, owner_of, rank_to_keep
from airflow_ft.sinks.postgres.gid import Gid, end_prepared, listed
from airflow_ft.sinks.postgres.ledger import Ledger

log = logging.getLogger(__name__)


def find_orphans(ledger: Ledger, installation: str) -> list[Orphan]:
    """Return what other installations have left past the last delivered number: markers and prepared transactions."""
    prepared = list(_of_others(ledger, installation))  # before the markers: what is committed meanwhile shows there
    found = list(marked_orphans(ledger.markers_of_others(_last(ledger), installation)))
    for owner, gid in prepared:
        if _is_undecided(ledger, gid):
            text = f"branch {gid.branch} is prepared (epoch {gid.epoch}, attempt {gid.attempt}), and holds its locks"
            statements = f"COMMIT PREPARED {gid.sql}", f"ROLLBACK PREPARED {gid.sql}"
            found.append(Orphan(gid.number, gid.branch, OrphanKind.PREPARED, owner, text, 0, *statements))
    return found


def refuse_prepared_of_others(ledger: Ledger, installation: str) -> None:
    """ForeignOwnerError when a lock was not had, and what a former owner has prepared may hold it.

    Nothing here ends that without a person, so waiting would not help.
    """
    found = list(_of_others(ledger, installation))
    if found:
        numbers = sorted({gid.number for _, gid in found})
        raise ForeignOwnerError(
            f"a lock is held, perhaps by rows that installation {found[0][0]}, a former owner of this pipeline, has"
            f" prepared (its checkpoints {', '.join(map(str, numbers[:5]))}).",
            code="prepared_foreign",
            remedy="Run `airflow ft adopt`, which lists them, with `--prepared commit` or `--prepared rollback`.",
            installation=found[0][0],
            checkpoints=numbers,
        )


def end_of_others(
    ledger: Ledger, fence: Fence, ending: PreparedEnding | None, *, roll_back_own: bool, seconds: float
) -> None:
    """Ends what former owners have prepared: undecided numbers as `ending` says, others are rolled back.

    Of an undecided number one attempt alone is committed: the one whose branches are visible, else the newest.

    With `roll_back_own` what older attempts of this installation have prepared goes too.
    StateConflictError: something is prepared, and `ending` is None.
    """
    found = list(_of_others(ledger, fence.installation))
    undecided = [gid for _, gid in found if _is_undecided(ledger, gid)]
    if undecided and ending is None:
        raise StateConflictError(
            f"a former owner has prepared {len(undecided)} transactions, and --prepared was not given.",
            code="prepared_undecided",
            remedy="Run `airflow ft adopt` with `--prepared commit` or `--prepared rollback`.",
            found=len(undecided),
        )
    for owner, gid in found:
        verb = "ROLLBACK"
        if ending is PreparedEnding.COMMIT and gid in undecided:
            kept = rank_to_keep(gid, ledger.branch_markers(gid.number).values(), undecided)
            verb = "COMMIT" if gid.rank == kept else "ROLLBACK"
        log.warning("%s: %s PREPARED of branch %s of checkpoint %d of the former owner, installation %s",
                    ledger.participant, verb, gid.branch, gid.number, owner)  # fmt: skip
        end_prepared(ledger.session, gid, verb, seconds)
    if roll_back_own:
        for gid in listed(ledger.session, owner_of(fence.installation, *ledger.key)):
            if gid.rank < fence.rank:
                end_prepared(ledger.session, gid, "ROLLBACK", seconds)


def _of_others(ledger: Ledger, installation: str) -> Iterator[tuple[str, Gid]]:
    """Former owners and what they have prepared."""
    for owner in sorted(set(ledger.installations()) - {installation}):
        for gid in listed(ledger.session, owner_of(owner, *ledger.key)):
            yield owner, gid


def _is_undecided(ledger: Ledger, gid: Gid) -> bool:
    """Return whether nothing in the sink says what was to become of it."""
    return gid.number > _last(ledger) and gid.number != PROBE_NUMBER and ledger.marker(gid.number) is None


def _last(ledger: Ledger) -> int:
    """The number delivered last, also where the head is gone."""
    head = ledger.remembered()
    return head.number if head else 0
