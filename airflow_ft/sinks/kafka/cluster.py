"""Kafka as a participant: `airflow_ft.protocol.participant.Participant` by transactions and tokens.

This module holds the shared part of all strategies, and the strategy `transaction` (REDO): `commit` is called only
after the decision and repeated until it succeeds. Kafka never decides: it has no unique key, so an abort marker could
not stop a late commit (R5). The strategy `held` (TWO_PHASE) builds on this and is in `held`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

from airflow_ft.clients.kafka.client import KafkaClients
from airflow_ft.clients.kafka.topics import TopicLimits, check_topic, create_token_topic, describe, topic_ids
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    SinkUnavailableError,
    StateConflictError,
    TokenLostError,
)
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan
from airflow_ft.protocol.orphans import Orphan, PreparedEnding
from airflow_ft.protocol.set_aside import SetAside, read_detail, together
from airflow_ft.protocol.set_aside import detail as set_aside_detail
from airflow_ft.protocol.votes import Outcome, Proof, SinkHead, Vote
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.kafka.content import PlanContent, Reading
from airflow_ft.sinks.kafka.known_topics import KnownTopics
from airflow_ft.sinks.kafka.readable import await_readable, require_same_topics
from airflow_ft.sinks.kafka.sending import merge_ends
from airflow_ft.sinks.kafka.slot import Slot
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.kafka.token import (
    Ballot,
    Delivery,
    PartitionEnd,
    Token,
    TokenStatus,
    check_owner,
    delivered,
    genesis,
    judge,
)
from airflow_ft.sinks.kafka.tokens import CLUSTER, Tokens, now
from airflow_ft.sinks.kafka.transaction import Transaction
from airflow_ft.sinks.kafka.vote import check_rows, check_times, client_limits, refused_rows, short_lived
from airflow_ft.sinks.refused import Refused
from airflow_ft.sinks.set_aside import DeliveredLog

T = TypeVar("T")
PRODUCER = "producer"  # the note that says what the topics demanded of a producer: it may have changed since
BALLOT = "tokens"  # the note that says upon which tokens the vote was cast, by group, and in which epoch


class KafkaParticipant:
    """One Kafka cluster with all its topics in a plan. See `airflow_ft.protocol.participant.Participant`.

    Every slot (transactional id) writes its token for every checkpoint, with or without rows.
    """

    def __init__(self, plan: ParticipantPlan, clients: KafkaClients, wal: WalReader) -> None:
        self._plan = plan
        self._clients = clients
        self._sinks = KafkaSink.all_of(plan)
        self._wal = wal
        self._content = PlanContent(plan.name, self._sinks, wal)
        self._known = KnownTopics(clients)
        self._demanded: Mapping[str, Any] | None = None
        self._tokens = Tokens(plan, clients, max((sink.slots for sink in self._sinks.values()), default=1))

    # --- the protocol --------------------------------------------------------------------------------------------

    def prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """Raises every slot's head to `fence`, then checks topics, schemas and rows; sends none.

        Creates the token topic when it is lacking and that is allowed, and seeds the genesis token (number 0) when
        nothing was delivered before. Returns notes for people, and for `commit` which tokens it found.
        """
        self._check_token_size()
        slots = self._tokens.slots(plan.pipeline)
        for slot in slots:
            slot.connect()
        token_topic = self._clients.settings.token_topic
        topics = self._known.limits([token_topic, *self._topics])
        if topics[token_topic] is None:
            create_token_topic(self._clients)
        births: dict[str, list[int]] = {}
        for slot in slots:
            # Not before: some brokers make a topic of whatever a producer asks for.
            slot.connect(self._demanded if slot.has_written(fence) else {})
        for slot in slots:
            token, status = self._tokens.ensure_taken_over(slot, plan, fence)
            if status is TokenStatus.READY:
                births[slot.group] = list(token.birth)
        notes = self._check_rows(plan, topics)
        return {**notes, PRODUCER: self._limits(), BALLOT: self._tokens.ballot(fence, births)}

    def commit(self, plan: Plan, fence: Fence, vote: Vote | None = None, *, set_aside: bool = False) -> Proof:
        """Sends the rows and the token in one transaction a slot, unless the token says that this has happened.

        Returns when read_committed readers can see the records. Repeated for ever without a second effect. With
        `set_aside`, without the rows that `prepare` would refuse by the topics' present settings.
        """
        notes = vote.notes if vote is not None else {}
        note = notes.get(BALLOT, {})

        def deliver(slot: Slot) -> Token:
            found = note.get("births", {}).get(slot.group)
            ballot = Ballot((found[0], found[1], found[2]), note["epoch"]) if found else None
            if isinstance(demanded := notes.get(PRODUCER), Mapping):
                slot.connect(demanded)
            return self._deliver(slot, plan, fence, ballot, self._set_aside(slot, plan) if set_aside else {})

        with self._tokens.in_cluster_of_vote(plan, note):
            return self._proof(plan, self._in_each_slot(plan, deliver))

    def abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        """Takes every slot over, which aborts what an older process left open; the outcome is what the tokens say.

        There is no tombstone: Kafka acts only after the decision, so nothing of an undecided number can be there. So a
        lost token stops nothing either: the next `prepare` seeds it.
        """
        tokens = []
        statuses = set()
        for slot in self._tokens.slots(plan.pipeline):
            try:
                token, status = self._tokens.take_over(slot, plan, fence)
            except TokenLostError:  # read after the slot was initialised, which has ended what was open
                statuses.add(TokenStatus.READY)
                continue
            tokens.append(token)
            statuses.add(status)
        if statuses == {TokenStatus.DONE}:
            return self._proof(plan, tokens)
        if TokenStatus.DONE in statuses:
            raise StateConflictError(
                "some transactional ids have already delivered this checkpoint, so it can only be committed.",
                remedy="Let the next attempt commit it. It delivers the rest.",
                pipeline=plan.pipeline,
                checkpoint=plan.number,
                participant=self._plan.name,
            )
        return Proof(self._plan.name, plan.number, Outcome.ABORTED, plan.digest, fence.epoch, detail=dict(detail))

    def proof(self, plan: Plan) -> Proof | None:
        """Return the proof from the tokens. None: not delivered, or too long ago for the tokens.

        A proof is given only when read_committed readers can see the records.

        Raises:
            SinkUnavailableError: a transaction that may write this number is open.
        """
        tokens = []
        for slot in self._tokens.slots(plan.pipeline):
            token = slot.last_committed()  # what is delivered stays delivered, whatever is open after it
            if token is None or token.delivery(plan.number) is None:
                token = slot.read_token()
            if token is None or token.delivery(plan.number) is None:
                return None
            own = Fence(plan.pipeline, plan.installation, *token.rank)
            check_owner(token, own, self._plan.name, slot.group, plan.number)
            tokens.append(token)
        return self._proof(plan, tokens)

    def forget(self, fence: Fence, floor: int) -> None:
        """There are no markers to prune: a token gives way to the next one."""

    def head(self, pipeline: str) -> SinkHead | None:
        """Return what the tokens remember together; None: all are gone, or were never written."""
        return self._tokens.head(pipeline)

    def remembers(self, pipeline: str) -> bool:
        """Return whether the token of every slot is there; a transaction that is held open does not delay it."""
        return all(slot.last_committed() is not None for slot in self._tokens.slots(pipeline))

    def seed(self, fence: Fence, number: int, last: Proof | None = None) -> None:
        """Sets the tokens that have vanished to `number` under `fence`; see `Tokens.seed`."""
        self._tokens.seed(fence, number, last)

    def restore(self, fence: Fence, plan: Plan) -> None:
        """Sets the tokens that have vanished to the plan's predecessor; see `Tokens.restore`."""
        self._tokens.restore(fence, plan)

    def renew(self, fence: Fence) -> None:
        """Renews tokens that were written more than an hour ago; one that has vanished is left to `prepare`."""
        self._tokens.renew(fence)

    def adopt(self, fence: Fence, number: int) -> None:
        """Set the token of every slot to `number` under `fence`, in place of any other; see `Tokens.adopt`."""
        self._tokens.adopt(fence, number)

    def orphans(self, pipeline: str, installation: str) -> Sequence[Orphan]:
        """A transaction that is open under one of its transactional ids: `adopt` aborts it."""
        return ()

    def end_orphans(self, fence: Fence, ending: PreparedEnding | None, *, make_way: bool = False) -> None:
        """Nothing to do before `adopt`, which initialises every producer and so ends what is open."""

    def heuristic(self, plan: Plan) -> str:
        """Nothing is sent before the decision."""
        return ""

    def close(self) -> None:
        """Closes all clients."""
        self._tokens.close()
        self._clients.close()

    # --- delivery ------------------------------------------------------------------------------------------------

    def _in_each_slot(self, plan: Plan, work: Callable[[Slot], T]) -> list[T]:
        """Runs `work` for all slots at once; when all have ended, the first failure is raised."""
        slots = self._tokens.slots(plan.pipeline)
        if len(slots) == 1:
            return [work(slots[0])]
        with ThreadPoolExecutor(len(slots), thread_name_prefix="airflow-ft-kafka") as pool:
            futures = [pool.submit(work, slot) for slot in slots]
        return [future.result() for future in futures]

    def _set_aside(self, slot: Slot, plan: Plan) -> dict[str, SetAside]:
        """Writes those rows of a slot into dead letters that `prepare` would refuse by the topics as they are now."""
        topics = self._require_topics(describe(self._clients, self._topics), {})
        self._demanded = limits = client_limits(self._clients, topics)
        refused = Refused(self._wal.dead_letters(plan), f"slot{slot.index}")
        for rows, file in self._content.loads(plan, slot.index):
            check_times(rows.sink, topics[rows.sink.topic], rows.name)
            for index, row, reason in refused_rows(rows, file, topics[rows.sink.topic], limits["message.max.bytes"]):
                refused.add(rows.name, rows.reader.segment, file, index, row, reason)
        return refused.write()

    def _deliver(
        self, slot: Slot, plan: Plan, fence: Fence, ballot: Ballot | None, aside: Mapping[str, SetAside]
    ) -> Token:
        """One slot's transaction: init -> token -> rows -> token -> commit. Returns the token that proves it.

        `ballot` says which token the vote was cast upon: only behind that one may rows be sent.
        """
        expected = self._tokens.expectation(slot, plan, ballot)
        # A delivery is permanent: if the committed token proves it, no producer is needed, and none is fenced.
        token = slot.last_committed(fence)
        if token is not None and token.number >= plan.number:
            judge(token, expected, fence, may_wait=False)
            return token
        limits = self._limits()
        content, note = self._content, ""
        if aside:  # durable before the transaction, whose token names it
            content = PlanContent(self._plan.name, self._sinks, DeliveredLog.without(self._wal, [aside]))
            note = self._wal.dead_letters(plan).write_note(f"slot{slot.index}", set_aside_detail(aside))

        def work(transaction: Transaction) -> Token:
            token = slot.read_token(fence)
            status = judge(token, expected, fence, may_wait=False)
            assert token is not None  # judge raises TokenLostError
            if status is TokenStatus.DONE:
                return token  # a transaction that was in doubt, or another process under this plan, has committed
            after = self._send(slot, plan, fence, token, reading, transaction, content, note)
            transaction.commit(after)
            return after

        with closing(content.read(plan, slot.index)) as reading:
            return slot.with_producer(fence, work, limits)

    def _send(
        self,
        slot: Slot,
        plan: Plan,
        fence: Fence,
        before: Token,
        reading: Reading,
        transaction: Transaction,
        content: PlanContent | None = None,
        note: str = "",
    ) -> Token:
        """Begins the transaction and sends the slot's rows; returns the token that is to travel with them.

        Equal ids of a topic before and after prove that the records went into that one, which the token then names.
        """
        with self._known.trusted():
            ids = self._known.ids(self._topics)
            transaction.begin()
            counters = (content or self._content).send(plan, slot.index, reading, transaction)
            ends = merge_ends(counters.values())
            after = topic_ids(self._clients, ends)
            if others := [topic for topic in ends if ids[topic] is None or after[topic] != ids[topic]]:
                what = f"topics were deleted or recreated before all rows were sent to them: {', '.join(others)}."
                where: dict[str, Any] = {"participant": self._plan.name, "topics": others}
                remedy = "Retry. Nothing was committed."
                raise SinkUnavailableError(what, code="topic_recreated", remedy=remedy, **where)
        counts = {name: counter.total for name, counter in counters.items()}
        delivery = Delivery(plan.number, plan.digest, counts)
        into = {topic: found for topic in ends if (found := ids[topic])}
        return delivered(before, fence, delivery, self._tokens.count, ends, now(), into, note)

    def _proof(self, plan: Plan, tokens: Sequence[Token]) -> Proof:
        """Return what the tokens of all slots say together, once readers can see the records.

        TokenLostError: they are not in the topics, whatever the tokens say.
        """
        counts: dict[str, int] = dict.fromkeys(self._sinks, 0)
        digests: set[str] = set()
        partitions: dict[str, Any] = {}
        topics: dict[str, str] = {}
        set_aside: list[Mapping[str, SetAside]] = []
        for token in tokens:
            delivery = token.delivery(plan.number)
            assert delivery is not None  # the callers have seen to that
            digests.add(delivery.digest)
            for name, count in delivery.counts.items():
                counts[name] = counts.get(name, 0) + count
            if token.number == plan.number:  # a later delivery was made after this one could be read
                require_same_topics(self._clients, token.topics)
                await_readable(self._clients, token.ends, self._topics)
                add_ends(partitions, token.ends or {})
                topics |= token.topics
                if token.aside:
                    set_aside.append(read_detail(self._wal.dead_letters(plan).read_note(token.aside)))
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
                "topics": topics,
                CLUSTER: self._tokens.cluster,
                **set_aside_detail(together(set_aside)),
            },
        )

    # --- small things --------------------------------------------------------------------------------------------

    @property
    def _topics(self) -> list[str]:
        return sorted({sink.topic for sink in self._sinks.values()})

    def _require_topics(
        self, topics: Mapping[str, TopicLimits | None], notes: dict[str, Any]
    ) -> Mapping[str, TopicLimits]:
        limits: dict[str, TopicLimits] = {}
        for name in self._topics:
            found = topics[name]
            notes |= check_topic(name, found, self._clients)
            assert found is not None  # check_topic raises SinkAccessError
            limits[name] = found
        return limits

    def _limits(self) -> Mapping[str, Any]:
        """Return what the topics demand of a producer, as they were seen last: the brokers judge each batch."""
        if self._demanded is None:
            topics = self._require_topics(describe(self._clients, self._topics), {})
            self._demanded = client_limits(self._clients, topics)
        return self._demanded

    def _check_rows(self, plan: Plan, topics: Mapping[str, TopicLimits | None]) -> dict[str, Any]:
        """Return whether the topics would take every row; returns notes for people."""
        notes: dict[str, Any] = {}
        with self._known.trusted():
            limits = self._require_topics(topics, notes)
            self._demanded = client_limits(self._clients, limits)
            message_max_bytes = self._demanded["message.max.bytes"]
            for rows, _ in self._content.rows(plan):
                try:
                    check_rows(rows, limits[rows.sink.topic], message_max_bytes)
                    notes |= short_lived(rows, limits[rows.sink.topic])
                except AirflowFtError as error:
                    error.located(sink=rows.name, pipeline=plan.pipeline, checkpoint=plan.number)
                    raise
        return notes

    def _check_token_size(self) -> None:
        counts = dict.fromkeys(self._sinks, 10**18)
        fence = Fence("p", "0" * 36, 10**18, 10**18)
        before, last = genesis(fence, self._tokens.count, now()), Delivery(10**18, "0" * 64, counts)
        worst = delivered(before, fence, last, self._tokens.count, {}, now())
        try:
            worst.metadata()
        except ValueError as error:
            what = f"{len(self._sinks)} sinks are too many for one Kafka connection: {error}."
            remedy = "Create a second Airflow connection to the same cluster, and divide the sinks between both."
            raise ConfigurationError(
                what, code="too_many_sinks", remedy=remedy, participant=self._plan.name, sinks=len(self._sinks)
            ) from error


def add_ends(into: dict[str, Any], ends: Mapping[str, Mapping[int, PartitionEnd]]) -> None:
    """Adds where the records of a slot, or of a sink, end to what a proof's detail says."""
    for topic, partitions in ends.items():
        for partition, end in partitions.items():
            place = into.setdefault(topic, {}).setdefault(str(partition), {"records": 0, "last_offset": -1})
            place["records"] += end.records
            place["last_offset"] = max(place["last_offset"], end.last)
