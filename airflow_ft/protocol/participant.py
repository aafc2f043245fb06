"""The port to one transactional system: the contract of every sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan
from airflow_ft.protocol.orphans import Orphan, PreparedEnding
from airflow_ft.protocol.votes import Proof, SinkHead, Vote
from airflow_ft.protocol.write_ahead_log import SegmentReader


class Participant(Protocol):
    """One transactional system, opened for the sinks of a participant plan. Not thread-safe; `close` after use.

    It may serve any number of plans with these sinks: the predecessor is the one of the plan that a step is given.

    Every method may raise SinkUnavailableError, SinkAccessError, FencedError (the head is newer than `fence`),
    StoreBehindSinkError, TokenLostError, ForeignOwnerError.
    """

    def prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """Phase 1: raises the head to `fence`, then checks everything that can be known before the commit point.

        Refuses a sink that has delivered less than `fence.delivered` (StoreBehindSinkError, TokenLostError).
        Creates ledger and head when they are lacking and the privileges suffice (else SinkAccessError with the
        DDL). Returns notes (plain JSON without secrets), which are kept with the vote. Raises DeclinedError when
        rows or schema cannot be accepted, and UnfitTargetError when changing the target would be enough. A TWO_PHASE
        participant returns when the rows are durable and invisible. It has rolled back what an older attempt of this
        number had prepared.
        """

    def commit(self, plan: Plan, fence: Fence, vote: Vote | None = None, *, set_aside: bool = False) -> Proof:
        """Make the rows visible under this plan's marker, or find that this has happened; repeatable without limit.

        `vote` is the one that the decision counted. A TWO_PHASE participant finishes what that attempt prepared, and
        delivers lost parts of it from the write-ahead log under the same marker. `vote.prepared` is 0 if a
        late attempt took the vote back while another sink decided. `vote.notes` are then those of the old vote, and all
        parts count as lost, except those that the notes name. Returns the proof: COMMITTED, or ABORTED if the sink
        holds an abort marker.

        With `set_aside` (at a person's request, and only for decided numbers) refused rows go into the plan's dead
        letters, durably before the commit. All others are delivered, and the proof names the refused ones
        (`core.set_aside`).

        Raises:
            DeclinedError: the sink refused the rows and rolled its transaction back. With `set_aside`: the refusal is
                not about single rows.
        """

    def abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        """Write the abort marker (with `detail`), or find the marker that exists already; returns the outcome.

        TWO_PHASE: once ABORTED is decided, rolls back what attempts older than the fence prepared of this number.
        """

    def proof(self, plan: Plan) -> Proof | None:
        """Return what the marker or token says now, in a fresh snapshot; None: there is none (which proves nothing)."""

    def forget(self, fence: Fence, floor: int) -> None:
        """Prunes markers at or below `floor`, raising the head's floor in the same transaction (R13).

        FencedError when the head's epoch is newer than the fence's; attempts are not compared.
        """

    def head(self, pipeline: str) -> SinkHead | None:
        """Return what the sink remembers of the pipeline under any owner; None: nothing."""

    def adopt(self, fence: Fence, number: int) -> None:
        """Make the sink remember `number` as the last delivered one, under `fence`, in place of any other.

        For a person who adopts the pipeline from another decision log (`airflow ft adopt`). Afterwards no number at or
        below `number` can be delivered.

        Raises:
            StateConflictError: the former owner has delivered a later number.
            FencedError: another process has adopted it since, under a newer epoch.
        """

    def orphans(self, pipeline: str, installation: str) -> Sequence[Orphan]:
        """Return what decision logs other than this one have left at numbers that they did not finish. Only reads."""

    def end_orphans(self, fence: Fence, ending: PreparedEnding | None, *, make_way: bool = False) -> None:
        """Shut the former owner out, then end what it left prepared. For a person who adopts; repeatable.

        The sink still names that owner until `adopt`. What this decision log itself prepared is rolled back, because
        the store has aborted all planned numbers.

        With `make_way`, in a sink that belongs to this decision log, the former owner's marks are removed instead, so
        that the planned numbers of this decision log can be delivered.

        Raises:
            StateConflictError: something is prepared, and `ending` is None.
            FencedError: another adoption took a newer epoch. It ends what is left in the same way.
            ForeignOwnerError: with `make_way`, the sink belongs to another decision log by now.
        """

    def heuristic(self, plan: Plan) -> str:
        """Return what was committed by hand of this *undecided* number, and how to resolve it; "": nothing.

        Only a TWO_PHASE participant can have such an outcome. The caller makes sure that the number is undecided.
        """

    def close(self) -> None: ...


@runtime_checkable
class Expiring(Protocol):
    """A participant whose memory expires without writes, as offsets of a consumer group do.

    Any other participant forgets only what a person removes.
    """

    def remembers(self, pipeline: str) -> bool:
        """Return whether its memory of a pipeline is complete, as of its last commit; never waits for open
        transactions.

        The participant has voted, so False means that a part of its memory was lost since.
        """

    def seed(self, fence: Fence, number: int, last: Proof | None = None) -> None:
        """Make it remember `number` again, after that expired while every number up to it is settled.

        `last` is its proof of that number; None: the decision log has none.

        Raises:
            TokenLostError: it remembers another number, or is another system than the proof names. Nothing expired.
        """

    def restore(self, fence: Fence, plan: Plan) -> None:
        """Set lost parts of its memory to the number before a decided plan. Parts that are there stay as they are.

        For a person who has confirmed that no rows of the plan are there that the lost parts would prove.
        """

    def renew(self, fence: Fence) -> None:
        """Write its memory again before that expires. FencedError as in `forget`."""


@runtime_checkable
class Branching(Protocol):
    """A TWO_PHASE participant whose branches several processes can store, side by side, for one attempt.

    Together `announce`, `load` and `conclude` do what `Participant.prepare` does, and raise what it raises.
    """

    def branches(self, plan: Plan) -> Sequence[str]:
        """Return the labels of a plan's branches: the same each time, without asking the system."""

    def announce(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """Raise the head to `fence`, and check everything before rows are stored; returns notes, plain JSON.

        An empty result: the number is settled.
        """

    def load(self, plan: Plan, fence: Fence, notes: Mapping[str, Any], branch: str) -> bool:
        """Store one branch, durable and invisible, or find that it is. `notes` and `fence` are the announcement's.

        False: the announcement no longer holds, and nothing was done. Any number of processes may call it at any time.
        A failed call leaves what is durable to the next one: another process may have counted it.
        """

    def conclude(self, plan: Plan, fence: Fence, notes: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Load every branch that is missing; returns the notes of the vote. None: the announcement no longer holds.

        It does not hold if the system was restored meanwhile: its head then names an older attempt.
        """


@runtime_checkable
class Judging(Protocol):
    """A participant that can judge values without a delivery, by the code that `prepare` judges with."""

    def judge(self, pipeline: str, readers: Sequence[SegmentReader]) -> None:
        """Raise DeclinedError for the first row that it would refuse. Only reads. Columns have been judged before."""


class ParticipantFactory(Protocol):
    """Opens a participant; the edges (Airflow, CLI, tests) bind it to their connections."""

    def __call__(self, plan: ParticipantPlan) -> Participant: ...
