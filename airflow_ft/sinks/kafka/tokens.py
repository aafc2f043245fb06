"""The tokens of all slots of a participant: raising the head, renewing, seeding, and what they remember together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any

from airflow_ft.clients.kafka.client import KafkaClients
from airflow_ft.clients.kafka.topics import cluster_id, create_token_topic, describe
from airflow_ft.protocol.errors import StateConflictError, TokenLostError
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan
from airflow_ft.protocol.votes import Proof, SinkHead
from airflow_ft.sinks.base.memory import refuse_to_adopt
from airflow_ft.sinks.kafka.slot import Slot
from airflow_ft.sinks.kafka.token import Ballot, Expectation, Token, TokenStatus, check_owner, genesis, judge, seeded
from airflow_ft.sinks.kafka.transaction import Transaction

CLUSTER = "cluster"
"""Names the cluster in the notes of a vote, and in the detail of a proof."""


class Tokens:
    """Memory of a participant's transactional ids; every slot takes part in every checkpoint."""

    def __init__(self, participant: ParticipantPlan, clients: KafkaClients, slots: int) -> None:
        self._participant = participant
        self._clients = clients
        self.count = slots
        """How many slots take part."""
        self._slots: dict[str, list[Slot]] = {}

    def slots(self, pipeline: str) -> list[Slot]:
        """The slots of a pipeline, opened once."""
        if pipeline not in self._slots:
            self._slots[pipeline] = [Slot(self._clients, pipeline, index) for index in range(self.count)]
        return self._slots[pipeline]

    @cached_property
    def cluster(self) -> str:
        """Return the id of the Kafka cluster, which proofs name; "": unknown."""
        return cluster_id(self._clients)

    def ballot(self, fence: Fence, births: Mapping[str, Sequence[int]]) -> Mapping[str, Any]:
        """Return the note of a vote: upon which tokens it was cast, in which cluster and epoch."""
        return {"epoch": fence.epoch, "births": births, CLUSTER: self.cluster}

    @contextmanager
    def in_cluster_of_vote(self, plan: Plan, ballot: Mapping[str, Any]) -> Iterator[None]:
        """Explain a TokenLostError of the block if the connection leads to another cluster than the vote's."""
        try:
            yield
        except TokenLostError as error:
            voted = ballot.get(CLUSTER, "")
            found = self.cluster if voted else ""
            if not found or voted == found:
                raise
            raise TokenLostError(
                f"the connection leads to Kafka cluster {found}, but the checkpoint was prepared in cluster {voted}.",
                code="cluster_changed",
                remedy=f"Correct bootstrap.servers of connection {self._participant.name}, then run `airflow ft resume"
                f" {plan.pipeline}`. If the cluster was rebuilt or replaced for good, run `airflow ft in-doubt"
                f" --pipeline {plan.pipeline} --redeliver {plan.number}`: it delivers the rows into the new one.",
                pipeline=plan.pipeline,
                checkpoint=plan.number,
                participant=self._participant.name,
                expected=voted,
                found=found,
            ) from error

    def close(self) -> None:
        """Closes what reads and writes tokens."""
        for slots in self._slots.values():
            for slot in slots:
                slot.close()
        self._slots.clear()

    def expectation(self, slot: Slot, plan: Plan, ballot: Ballot | None = None) -> Expectation:
        """Return what the plan expects of the slot's token; `ballot` says which one the vote was cast upon."""
        mine = plan.participant(self._participant.name)
        return Expectation(plan.pipeline, mine.name, slot.group, plan.number, plan.digest, mine.predecessor, ballot)

    # --- what the sink remembers ---------------------------------------------------------------------------------

    def head(self, pipeline: str) -> SinkHead | None:
        """Return what the tokens remember together; None: all are gone, or were never written."""
        tokens = [token for slot in self.slots(pipeline) if (token := slot.read_token()) is not None]
        if not tokens:
            return None
        newest = max(tokens, key=lambda token: token.rank)
        return SinkHead(newest.installation, newest.epoch, min(token.number for token in tokens))

    # --- the head ------------------------------------------------------------------------------------------------

    def ensure_taken_over(self, slot: Slot, plan: Plan, fence: Fence) -> tuple[Token, TokenStatus]:
        """As `take_over`; but a token that this process has written in this epoch stays, and is read alone."""
        token = slot.own_token(fence)
        if token is None:
            return self.take_over(slot, plan, fence)
        return token, judge(token, self.expectation(slot, plan), fence, may_wait=True)

    def take_over(self, slot: Slot, plan: Plan, fence: Fence) -> tuple[Token, TokenStatus]:
        """Writes the token of the same number under `fence` (I5: older producers are fenced, older heads refused)."""
        expected = self.expectation(slot, plan)

        def choose() -> Token:
            token = self._present_token(slot, plan, fence)
            judge(token, expected, fence, may_wait=True)
            assert token is not None  # judge raises TokenLostError
            return token.taken_over(fence, now())

        token = self._write(slot, fence, choose)
        return token, judge(token, expected, fence, may_wait=True)

    def _present_token(self, slot: Slot, plan: Plan, fence: Fence) -> Token | None:
        """The slot's token, or the one it begins with where its absence is no loss: nothing delivered yet, new slot."""
        token, predecessor = slot.read_token(fence), plan.participant(self._participant.name).predecessor
        if token is not None:
            check_owner(token, fence, self._participant.name, slot.group, plan.number)
        elif predecessor == 0:
            return genesis(fence, self.count, now())
        if slot.index == 0 or (token is not None and token.number >= predecessor):
            return token
        first = self.slots(plan.pipeline)[0].read_token(fence)
        if first is None or first.slots > slot.index:
            return token
        if first.number == predecessor:  # its token proves that the predecessor was delivered without this slot
            return seeded(fence, predecessor, self.count, now())
        raise self._slots_raised(plan)

    def check_waiting(self, plan: Plan, fence: Fence) -> None:
        """Check the tokens of a plan whose predecessor is not delivered. Otherwise a fault is found after the decision.

        A new slot, or one with an older token than slot 0, is seeded only behind that delivery.

        Raises:
            StateConflictError: there is such a slot.
            TokenLostError, StoreBehindSinkError: as `judge`, for the slots that took part in the last delivery.
        """
        slots = self.slots(plan.pipeline)
        tokens = [slot.last_committed(fence) for slot in slots]
        taking_part = len(slots) if tokens[0] is None else tokens[0].slots
        for slot, token in zip(slots[:taking_part], tokens, strict=False):
            if token is not None or slot.index == 0:  # a token that has expired alone is renewed behind the predecessor
                judge(token, self.expectation(slot, plan), fence, may_wait=True)
        for token in tokens[taking_part:]:
            if tokens[0] is not None and (token is None or token.number < tokens[0].number):
                raise self._slots_raised(plan)

    def _slots_raised(self, plan: Plan) -> StateConflictError:
        predecessor = plan.participant(self._participant.name).predecessor
        return StateConflictError(
            f"the number of slots was raised to {self.count} while checkpoint {predecessor} is not delivered.",
            remedy="Do nothing: this checkpoint is prepared again when that one is delivered.",
            pipeline=plan.pipeline,
            checkpoint=plan.number,
            participant=self._participant.name,
            slots=self.count,
        )

    def renew(self, fence: Fence) -> None:
        """Renews tokens that were written more than an hour ago, under their number and the newer head.

        Raises:
            FencedError: the token's epoch is newer.
        """
        for slot in self.slots(fence.pipeline):
            token = slot.glance(fence)
            if token is None or not token.needs_renewal(now()):
                continue
            # Housekeeping has no attempt number. Within its epoch it keeps the existing head.
            mine = fence
            if token.epoch == fence.epoch:
                mine = replace(fence, attempt=max(fence.attempt, token.attempt))
            self._write(slot, mine, partial(self._renewed, slot, mine))

    def _renewed(self, slot: Slot, fence: Fence) -> Token:
        token = slot.read_token(fence)
        if token is None:
            raise TokenLostError(
                f"the token of group {slot.group!r} vanished while it was renewed.",
                remedy="Do nothing: the next run writes it again if nothing is under way, or says what to do.",
                pipeline=fence.pipeline,
                participant=self._participant.name,
                group=slot.group,
            )
        check_owner(token, fence, self._participant.name, slot.group)
        return token.taken_over(fence, now())

    def seed(self, fence: Fence, number: int, last: Proof | None = None) -> None:
        """Set vanished tokens to `number` under `fence`, so that delivery can continue after it.

        Call it only while every number up to `number` is settled and none is COMMITTING. Keeps tokens that are at
        `number` already. `last` is the proof of `number`, if it is known.

        Raises:
            TokenLostError: a token is at another number, or the proof names another cluster.
            ForeignOwnerError, FencedError: as elsewhere.
        """
        before = last.detail.get(CLUSTER, "") if last is not None else ""
        found = self.cluster if before else ""
        if found and before != found:  # nothing has expired: the tokens are where they were
            raise TokenLostError(
                f"the connection leads to Kafka cluster {found}, which has no token of the pipeline. Checkpoint"
                f" {number} was delivered into cluster {before}.",
                code="cluster_changed",
                remedy=f"Correct bootstrap.servers of connection {self._participant.name}, then run `airflow ft resume"
                f" {fence.pipeline}`. If the cluster was rebuilt or replaced for good, run `airflow ft adopt"
                f" {fence.pipeline}`: later checkpoints go to the new one, and earlier rows stay in the old one.",
                pipeline=fence.pipeline,
                participant=self._participant.name,
                number=number,
                expected=before,
                found=found,
            )

        def choose(slot: Slot) -> Token:
            token = slot.read_token(fence)
            if token is None:
                return seeded(fence, number, self.count, now())
            check_owner(token, fence, self._participant.name, slot.group)
            if token.number != number:
                raise TokenLostError(
                    f"the token of group {slot.group!r} is at checkpoint {token.number}. Only a token that is gone is"
                    f" set to {number}.",
                    remedy="Compare decision log and topics before you overwrite it with `airflow ft adopt`.",
                    pipeline=fence.pipeline,
                    participant=self._participant.name,
                    group=slot.group,
                    number=token.number,
                )
            return token.taken_over(fence, now())

        self._write_all(fence, choose, self.slots(fence.pipeline))

    def restore(self, fence: Fence, plan: Plan) -> None:
        """Set vanished tokens to the predecessor of a decided plan, under `fence`. Their slots then deliver the plan.

        For a person who has confirmed that the rows of these slots are not in the topics (`--redeliver`). The other
        slots keep their tokens: those that have delivered the plan do not deliver it again.

        Raises:
            ForeignOwnerError, FencedError: as elsewhere.
        """

        def choose(slot: Slot) -> Token:
            token = slot.read_token(fence)
            if token is None:
                return seeded(fence, plan.participant(self._participant.name).predecessor, self.count, now())
            check_owner(token, fence, self._participant.name, slot.group, plan.number)
            return token.taken_over(fence, now())  # what was open has committed it meanwhile

        lost = [slot for slot in self.slots(plan.pipeline) if slot.last_committed(fence) is None]
        self._write_all(fence, choose, lost)

    def adopt(self, fence: Fence, number: int) -> None:
        """Set the token of every slot to `number` under `fence`, for a person who has decided (`airflow ft adopt`).

        Overwrites any token, also another decision log's newer head.

        Raises:
            StateConflictError: the former owner has gone past `number`.
            FencedError: another process has adopted it since, under a newer epoch.
        """

        def choose(slot: Slot) -> Token:
            token = slot.read_token()
            if token is not None and token.installation == fence.installation:
                check_owner(token, fence, self._participant.name, slot.group)
            if slot.index == 0:  # its producer is initialised: the former owner cannot deliver any more
                refuse_to_adopt(self.head(fence.pipeline), (), fence.installation, number)
            return seeded(fence, number, self.count, now())

        self._write_all(fence, choose, self.slots(fence.pipeline), foreign=True)

    # --- small things --------------------------------------------------------------------------------------------

    def _write_all(
        self, fence: Fence, choose: Callable[[Slot], Token], slots: Sequence[Slot], *, foreign: bool = False
    ) -> None:
        """One transaction after the other; the topic that they need is made when it is lacking."""
        topic = self._clients.settings.token_topic
        if describe(self._clients, [topic])[topic] is None:
            create_token_topic(self._clients)
        for slot in slots:
            self._write(slot, fence, partial(choose, slot), foreign=foreign)

    def _write(self, slot: Slot, fence: Fence, choose: Callable[[], Token], foreign: bool = False) -> Token:
        """One transaction that writes the token that `choose` makes of the present one."""

        def work(transaction: Transaction) -> Token:
            token = choose()  # read after init: no older process can write it any more
            transaction.begin()
            transaction.commit(token)
            return token

        return slot.with_producer(fence, work, {}, foreign=foreign)


def now() -> datetime:
    """The time that a token is written at."""
    return datetime.now(UTC)
