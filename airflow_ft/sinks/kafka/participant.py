"""Kafka as a participant: the promises of `airflow_ft.core.ports.Participant` kept by transactions and tokens.

Kafka is REDO: `commit` is called only after the decision and repeated until it succeeds. It never decides: it has no
unique key, so a tombstone could not stop a late commit (hole 5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from airflow_ft.core.errors import (
    AirflowFtError,
    ConfigurationError,
    StateConflictError,
    TokenLostError,
)
from airflow_ft.core.model import Fence, Outcome, ParticipantPlan, Plan, Proof, SinkHead, Vote
from airflow_ft.core.ports import ConnectionInfo, WalReader
from airflow_ft.sinks.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.sinks.kafka.content import PlanContent
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.kafka.token import (
    Delivery,
    Expectation,
    PartitionEnd,
    Standing,
    Token,
    check_owner,
    delivered,
    genesis,
    judge,
    seeded,
)
from airflow_ft.sinks.kafka.topics import TopicLimits, await_readable, create_token_topic, describe
from airflow_ft.sinks.kafka.transaction import Slot, Transaction, merge_ends
from airflow_ft.sinks.kafka.validation import check_rows, check_topic, client_limits

T = TypeVar("T")


def open_participant(plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader) -> KafkaParticipant:
    """Opens the Kafka participant of a plan; connects at the first call that needs a broker.

    Raises:
        ConfigurationError: the plan's settings are not known to this version.
        SinkAccessError: the connection's extra cannot work.
    """
    return KafkaParticipant(plan, KafkaClients(KafkaSettings.from_connection(connection)), wal)


class KafkaParticipant:
    """One Kafka cluster with all its topics in a plan; see `airflow_ft.core.ports.Participant` for the promises.

    Every slot (transactional id) writes its token for every checkpoint, with or without rows.
    """

    def __init__(self, plan: ParticipantPlan, clients: KafkaClients, wal: WalReader) -> None:
        self._plan = plan
        self._clients = clients
        self._sinks = {
            name: KafkaSink.from_settings(plan.name, plan.strategy, settings) for name, settings in plan.sinks.items()
        }
        self._content = PlanContent(plan.name, self._sinks, wal)
        self._slot_count = max((sink.slots for sink in self._sinks.values()), default=1)
        self._slots: dict[tuple[str, int], Slot] = {}

    # --- the protocol --------------------------------------------------------------------------------------------

    def prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """Raises every slot's head to `fence`, then checks topics, schemas and rows; sends none.

        Creates the token topic when it is lacking and that is allowed, and seeds the genesis token (number 0) when
        nothing was delivered before. Returns notes for people.
        """
        self._check_token_size()
        token_topic = self._clients.settings.token_topic
        topics = describe(self._clients, [token_topic, *self._topics])
        if topics[token_topic] is None:
            create_token_topic(self._clients)
        for slot in self._all_slots(plan.pipeline):
            self._take_over(slot, plan, fence)
        notes: dict[str, str] = {}
        limits = self._require_topics(topics, notes)
        message_max_bytes = client_limits(self._clients, limits)["message.max.bytes"]
        for rows, _ in self._content.rows(plan):
            try:
                check_rows(rows, limits[rows.sink.topic], message_max_bytes)
            except AirflowFtError as error:
                error.located(sink=rows.name, pipeline=plan.pipeline, checkpoint=plan.number)
                raise
        return notes

    def commit(self, plan: Plan, fence: Fence, vote: Vote | None = None) -> Proof:
        """Sends the rows and the token in one transaction a slot, unless the token says that this has happened.

        Returns when read_committed readers can see the records. Repeated for ever without a second effect.
        """
        if self._slot_count == 1:
            tokens = [self._deliver(slot, plan, fence) for slot in self._all_slots(plan.pipeline)]
        else:
            with ThreadPoolExecutor(self._slot_count, thread_name_prefix="airflow-ft-kafka") as pool:
                futures = [pool.submit(self._deliver, s, plan, fence) for s in self._all_slots(plan.pipeline)]
            tokens = [future.result() for future in futures]  # all have ended; the first failure is raised
        return self._proof(plan, tokens)

    def abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        """Takes every slot over, which aborts what an older process left open; the outcome is what the tokens say.

        There is no tombstone: Kafka acts only after the decision, so nothing of an undecided number can be there.
        """
        tokens = []
        standings = set()
        for slot in self._all_slots(plan.pipeline):
            token, standing = self._take_over(slot, plan, fence)
            tokens.append(token)
            standings.add(standing)
        if standings == {Standing.DONE}:
            return self._proof(plan, tokens)
        if Standing.DONE in standings:
            raise StateConflictError(
                "some transactional ids have delivered this checkpoint already: it was decided.",
                remedy="Commit it; the rest is delivered then.",
                pipeline=plan.pipeline,
                checkpoint=plan.number,
                participant=self._plan.name,
            )
        return Proof(self._plan.name, plan.number, Outcome.ABORTED, plan.digest, fence.epoch, detail=dict(detail))

    def proof(self, plan: Plan) -> Proof | None:
        """What the tokens say now. None: not delivered, or so long ago that the tokens no longer know its digest.

        A proof is given only when read_committed readers can see the records. SinkUnavailableError while a
        transaction that writes the token is open.
        """
        tokens = []
        for slot in self._all_slots(plan.pipeline):
            token = slot.read_token()
            if token is None or token.delivery(plan.number) is None:
                return None
            if token.installation != plan.installation:
                check_owner(
                    token,
                    Fence(plan.pipeline, plan.installation, *token.rank),
                    self._plan.name,
                    slot.group,
                    plan.number,
                )
            tokens.append(token)
        return self._proof(plan, tokens)

    def forget(self, fence: Fence, floor: int) -> None:
        """Renews tokens that were written more than an hour ago, under their number and the newer head.

        There are no markers to prune, so `floor` is not used. A vanished token is left to `prepare`, which
        judges it.

        Raises:
            FencedError: the token's epoch is newer.
        """
        for slot in self._all_slots(fence.pipeline):
            token = slot.glance(fence)
            if token is None or not token.needs_renewal(_now()):
                continue
            # Housekeeping has no attempt of its own: within its epoch it keeps the head that stands there.
            mine = fence
            if token.epoch == fence.epoch:
                mine = replace(fence, attempt=max(fence.attempt, token.attempt))
            self._write(slot, mine, _renewed(slot, mine, self._plan.name))

    def close(self) -> None:
        """Closes what reads tokens; producers live only within a call."""
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()

    # --- what the sink remembers ---------------------------------------------------------------------------------

    def head(self, pipeline: str) -> SinkHead | None:
        """What the tokens remember together; None: all are gone, or were never written."""
        tokens = [token for slot in self._all_slots(pipeline) if (token := slot.read_token()) is not None]
        if not tokens:
            return None
        newest = max(tokens, key=lambda token: token.rank)
        return SinkHead(newest.installation, newest.epoch, min(token.number for token in tokens))

    def token_numbers(self, pipeline: str) -> Sequence[int | None]:
        """The number at which each slot's token stands; None: gone, or never written."""
        tokens = [slot.read_token() for slot in self._all_slots(pipeline)]
        return [token.number if token is not None else None for token in tokens]

    def seed(self, fence: Fence, number: int, *, foreign: bool = False) -> None:
        """Sets the token of every slot to `number` under `fence`, so that delivery can go on after it.

        When tokens have vanished: only while every number up to `number` is settled and none is COMMITTING
        (DESIGN 10, Predecessor); tokens that stand at `number` already are only taken over. With `foreign`, for a
        person who has decided (`airflow ft adopt`): whatever stands there is overwritten, another installation's and
        a newer head too.

        Raises:
            TokenLostError: a token stands elsewhere (and `foreign` is not set).
            ForeignOwnerError, FencedError: as everywhere, unless `foreign` is set.
        """
        if describe(self._clients, [self._clients.settings.token_topic])[self._clients.settings.token_topic] is None:
            create_token_topic(self._clients)

        def choose(slot: Slot) -> Token:
            token = None if foreign else slot.read_token(fence)
            if token is None:
                now = _now()
                return seeded(fence, number, self._slot_count, now) if number else genesis(fence, self._slot_count, now)
            check_owner(token, fence, self._plan.name, slot.group)
            if token.number != number:
                raise TokenLostError(
                    f"the token of group {slot.group!r} stands at {token.number} and is not gone; {number} was to be"
                    " seeded.",
                    remedy="A person has to compare store and topics before it is overwritten.",
                    pipeline=fence.pipeline,
                    participant=self._plan.name,
                )
            return token.taken_over(fence, _now())

        for slot in self._all_slots(fence.pipeline):
            self._write(slot, fence, partial(choose, slot), foreign=foreign)

    # --- the head ------------------------------------------------------------------------------------------------

    def _take_over(self, slot: Slot, plan: Plan, fence: Fence) -> tuple[Token, Standing]:
        """Writes the token of the same number under `fence` (I5: older producers are fenced, older heads refused)."""
        expected = self._expectation(slot, plan)

        def choose() -> Token:
            token = self._present_token(slot, plan, fence)
            judge(token, expected, fence, may_wait=True)
            assert token is not None  # judge raises TokenLostError
            return token.taken_over(fence, _now())

        token = self._write(slot, fence, choose)
        return token, judge(token, expected, fence, may_wait=True)

    def _present_token(self, slot: Slot, plan: Plan, fence: Fence) -> Token | None:
        """The slot's token, or the one it begins with where its absence is no loss: nothing delivered yet, new slot."""
        token, predecessor = slot.read_token(fence), self._plan.predecessor
        if token is not None:
            check_owner(token, fence, self._plan.name, slot.group, plan.number)
        elif predecessor == 0:
            return genesis(fence, self._slot_count, _now())
        if slot.index == 0 or (token is not None and token.number >= predecessor):
            return token
        first = self._slot(plan.pipeline, 0).read_token(fence)
        if first is None or first.slots > slot.index:
            return token
        if first.number == predecessor:  # its token proves that the predecessor was delivered without this slot
            return seeded(fence, predecessor, self._slot_count, _now())
        raise StateConflictError(
            f"the number of slots was raised to {self._slot_count} while checkpoint {predecessor} is not delivered.",
            remedy="Nothing to do: this one is prepared again when that one is delivered.",
            pipeline=plan.pipeline,
            checkpoint=plan.number,
            participant=self._plan.name,
        )

    def _write(self, slot: Slot, fence: Fence, choose: Callable[[], Token], foreign: bool = False) -> Token:
        """One transaction that writes the token that `choose` makes of the present one."""

        def work(transaction: Transaction) -> Token:
            token = choose()  # read after init: from here on nobody older can write it
            transaction.begin()
            transaction.commit(token)
            return token

        return slot.with_producer(fence, work, {}, foreign=foreign)

    # --- delivery ------------------------------------------------------------------------------------------------

    def _deliver(self, slot: Slot, plan: Plan, fence: Fence) -> Token:
        """One slot's transaction: init -> token -> rows -> token -> commit. Returns the token that proves it."""
        expected = self._expectation(slot, plan)
        # Once there, a delivery stays there: a committed token that says so needs no producer, and fences nobody.
        token = slot.glance(fence)
        if token is not None and judge(token, expected, fence, may_wait=False) is Standing.DONE:
            return token
        limits = client_limits(self._clients, self._require_topics(describe(self._clients, self._topics), {}))

        def work(transaction: Transaction) -> Token:
            token = slot.read_token(fence)
            standing = judge(token, expected, fence, may_wait=False)
            assert token is not None  # judge raises TokenLostError
            if standing is Standing.DONE:
                return token  # a transaction that was in doubt, or another process under this plan, has committed
            transaction.begin()
            tallies = self._content.send(plan, slot.index, transaction)
            counts = {name: tally.total for name, tally in tallies.items()}
            delivery = Delivery(plan.number, plan.digest, counts)
            after = delivered(token, fence, delivery, self._slot_count, merge_ends(tallies.values()), _now())
            transaction.commit(after)
            return after

        return slot.with_producer(fence, work, limits)

    def _proof(self, plan: Plan, tokens: Sequence[Token]) -> Proof:
        """What the tokens of all slots say together, once readers can see the records."""
        counts: dict[str, int] = dict.fromkeys(self._sinks, 0)
        digests: set[str] = set()
        partitions: dict[str, Any] = {}
        notes: list[str] = []
        for token in tokens:
            delivery = token.delivery(plan.number)
            assert delivery is not None  # the callers have seen to that
            digests.add(delivery.digest)
            for name, count in delivery.counts.items():
                counts[name] = counts.get(name, 0) + count
            if token.number == plan.number:  # a later delivery was made after this one could be read
                notes += await_readable(self._clients, token.ends, self._topics)
                _add_ends(partitions, token.ends or {})
        digest = plan.digest if digests == {plan.digest} else next(iter(digests - {plan.digest}))
        newest = max(tokens, key=lambda token: token.delivered_by)
        return Proof(
            participant=self._plan.name,
            number=plan.number,
            outcome=Outcome.COMMITTED,
            digest=digest,
            epoch=newest.delivered_by[0],
            counts=counts,
            detail={
                "attempt": newest.delivered_by[1],
                "token": newest.number,
                "slots": len(tokens),
                "partitions": partitions,
                **({"notes": notes} if notes else {}),
            },
        )

    # --- small things --------------------------------------------------------------------------------------------

    @property
    def _topics(self) -> list[str]:
        return sorted({sink.topic for sink in self._sinks.values()})

    def _slot(self, pipeline: str, index: int) -> Slot:
        slot = self._slots.get((pipeline, index))
        if slot is None:
            slot = self._slots[(pipeline, index)] = Slot(self._clients, pipeline, index)
        return slot

    def _all_slots(self, pipeline: str) -> list[Slot]:
        return [self._slot(pipeline, index) for index in range(self._slot_count)]

    def _expectation(self, slot: Slot, plan: Plan) -> Expectation:
        return Expectation(plan.pipeline, self._plan.name, slot.group, plan.number, plan.digest, self._plan.predecessor)

    def _require_topics(
        self, topics: Mapping[str, TopicLimits | None], notes: dict[str, str]
    ) -> Mapping[str, TopicLimits]:
        limits: dict[str, TopicLimits] = {}
        for name in self._topics:
            found = topics[name]
            notes |= check_topic(name, found, self._clients)
            assert found is not None  # check_topic raises SinkAccessError
            limits[name] = found
        return limits

    def _check_token_size(self) -> None:
        counts = dict.fromkeys(self._sinks, 10**18)
        now = _now()
        fence = Fence("p", "0" * 36, 10**18, 10**18)
        worst = delivered(
            genesis(fence, self._slot_count, now), fence, Delivery(10**18, "0" * 64, counts), self._slot_count, {}, now
        )
        try:
            worst.metadata()
        except ValueError as error:
            raise ConfigurationError(
                f"{len(self._sinks)} sinks are too many for one Kafka connection: {error}.",
                remedy="Declare a second Airflow connection to the same cluster, and divide the sinks among both.",
                participant=self._plan.name,
            ) from error


def _renewed(slot: Slot, fence: Fence, participant: str) -> Callable[[], Token]:
    def choose() -> Token:
        token = slot.read_token(fence)
        if token is None:
            raise TokenLostError(
                f"the token of group {slot.group!r} vanished while it was renewed.",
                pipeline=fence.pipeline,
                participant=participant,
            )
        check_owner(token, fence, participant, slot.group)
        return token.taken_over(fence, _now())

    return choose


def _add_ends(into: dict[str, Any], ends: Mapping[str, Mapping[int, PartitionEnd]]) -> None:
    for topic, partitions in ends.items():
        for partition, end in partitions.items():
            place = into.setdefault(topic, {}).setdefault(str(partition), {"records": 0, "last_offset": -1})
            place["records"] += end.records
            place["last_offset"] = max(place["last_offset"], end.last)


def _now() -> datetime:
    return datetime.now(UTC)
