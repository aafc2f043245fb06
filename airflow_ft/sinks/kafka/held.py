"""Strategy `held` (TWO_PHASE): the transaction is filled in `prepare`, held open, and ended by another process.

`prepare` sends the rows and, last of all, the token, and leaves the transaction open. Its identity, (producer id,
epoch), is stored with the vote. `commit` ends it by one request. A transaction is initialised again for each number,
so an identity names exactly one transaction, and a late request ends no other.

A lost transaction (time-out, another producer, a broker that forgot) is delivered from the write-ahead log as the
strategy `transaction` does, under the same token. After the decision nothing depends on the transaction. For the same
reason a number whose predecessor is not delivered yet holds nothing: two held transactions would need two
transactional ids, and order (I4) needs only one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError

from airflow_ft.clients.kafka.client import KafkaClients
from airflow_ft.clients.kafka.topics import (
    create_token_topic,
    describe,
    longest_transaction,
    missing_topic,
    other_topics,
    topic_ids,
)
from airflow_ft.protocol.errors import SinkAccessError, SinkUnavailableError, StoreBehindSinkError, TokenLostError
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan
from airflow_ft.protocol.orphans import Orphan, OrphanKind
from airflow_ft.protocol.votes import Outcome, Proof, Vote
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.kafka.cluster import BALLOT, PRODUCER, KafkaParticipant
from airflow_ft.sinks.kafka.sending import ProducerLostError
from airflow_ft.sinks.kafka.slot import Slot
from airflow_ft.sinks.kafka.spec import BROKERS_DEFAULT_MAXIMUM, KafkaSink
from airflow_ft.sinks.kafka.token import Ends, Token, TokenStatus, judge
from airflow_ft.sinks.kafka.transaction import ProducerIdentity, Transaction
from airflow_ft.sinks.kafka.transaction_coordinator import Ending, TransactionCoordinator

log = logging.getLogger(__name__)

_REDELIVER = "If the topics lack the rows of this checkpoint, run `airflow ft in-doubt --redeliver` to send them."
TIMEOUT = "timeout_ms"  # the note that says how long a transaction was to be held
_SETTING = "transaction.timeout.ms"
_NO_LIMIT = 2**31 - 1  # milliseconds: the largest value that a producer takes
HELD = "held"  # the note that names the open transactions, by transactional id


@dataclass(frozen=True, slots=True)
class Announced:
    """Holding a slot of an announced attempt.

    `leave` is called with what names the transaction, when rows and token are acknowledged. `yields`: if another
    process takes the transactional id, this one gives up.
    """

    leave: Callable[[Mapping[str, Any]], None]
    yields: bool


class HeldParticipant(KafkaParticipant):
    """A cluster whose transaction is open between `prepare` and `commit`; see `KafkaParticipant` for the rest."""

    def __init__(self, plan: ParticipantPlan, clients: KafkaClients, wal: WalReader) -> None:
        super().__init__(plan, clients, wal)
        self._coordinator = TransactionCoordinator(clients)
        self._longest = 0  # milliseconds that a delivery from the log may take; 0: as the connection says
        self._most = 0  # milliseconds that the brokers allow; 0: they were not asked yet

    # --- the protocol --------------------------------------------------------------------------------------------

    def prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """Fill one transaction per slot with rows and token, and leave it open; returns the notes that end it.

        Ends the transactions of older attempts first, because each slot is initialised again. A number that waits for
        its predecessor is only checked, and its notes say so.

        Raises:
            SinkAccessError: the brokers cannot end a transaction for another process, or not hold it long enough.
            StateConflictError, TokenLostError: it waits, and `Tokens.check_waiting` refuses it.
        """
        hold = holding(self._clients, self._coordinator, self._sinks.values())
        if self._waits(plan, fence):
            self._tokens.check_waiting(plan, fence)
            notes = self._check_rows(plan, self._known.limits(self._topics))
            predecessor = plan.participant(self._plan.name).predecessor
            return {
                **notes,
                TIMEOUT: hold.get(_SETTING),
                "deferred": f"checkpoint {predecessor} is not delivered yet: the rows are sent after the decision",
            }
        notes = dict(super().prepare(plan, fence))
        del notes[PRODUCER]  # the commit of what is held needs none
        held: dict[str, Any] = {}
        try:
            self._in_each_slot(plan, lambda slot: self._hold(slot, plan, fence, hold, held))
        except BaseException:
            self._end_uncounted(held)
            raise
        return {**notes, HELD: held}

    def commit(self, plan: Plan, fence: Fence, vote: Vote | None = None, *, set_aside: bool = False) -> Proof:
        """Ends what the counted vote holds; what is lost of it is sent from the write-ahead log.

        Only what is decided is committed, so it does no harm that a slower twin asks for the same. What was sent into
        a topic that was deleted since is ended without a commit: its token would say that it is delivered.

        Raises:
            TokenLostError: a token is gone. Nothing that is held is committed: nothing would prove it.
        """
        notes = vote.notes if vote is not None else {}
        held = notes.get(HELD, {})
        self._longest = _longest(self._sinks.values(), [*held.values(), notes])
        waiting = []
        with self._tokens.in_cluster_of_vote(plan, notes.get(BALLOT, {})):
            for slot in self._tokens.slots(plan.pipeline):
                token = slot.last_committed(fence)  # I5: a newer head refuses this fence
                if slot.group in held and token is None:
                    raise self._token_lost(slot, plan, identity_of(held[slot.group]))
                if slot.group in held and token is not None and token.number < plan.number:
                    waiting.append(slot)
        voted = {slot.group: held[slot.group]["topics"] for slot in waiting}
        now = topic_ids(self._clients, {topic for topics in voted.values() for topic in topics})
        for topic in sorted(topic for topic, found in now.items() if found is None):
            raise missing_topic(topic, self._clients.conn_id)  # recreated, it is another one: sent again then
        for slot in waiting:
            identity = identity_of(held[slot.group])
            if others := other_topics(voted[slot.group], now):
                self._coordinator.end(slot.group, identity, commit=False)
                log.warning(
                    "checkpoint %d: transactional id %s: %s was recreated, so the rows are sent again",
                    plan.number,
                    slot.group,
                    ", ".join(others),
                )
            elif self._coordinator.end(slot.group, identity, commit=True) is Ending.DONE:
                slot.await_number(plan.number, fence)  # from here on the token proves it
            else:
                log.warning(
                    "checkpoint %d: transactional id %s: the held transaction is gone (time-out, another producer, or"
                    " committed before). The token shows which",
                    plan.number,
                    slot.group,
                )
        return super().commit(plan, fence, vote, set_aside=set_aside)

    def abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        """Ends what older attempts of this number hold, by taking every slot over. Called once ABORTED is decided.

        Raises:
            StoreBehindSinkError: the number is delivered, which the decision log denies.
        """
        if self._waits(plan, fence):  # it never held anything, and the id may hold an earlier number
            return Proof(self._plan.name, plan.number, Outcome.ABORTED, plan.digest, fence.epoch, detail=dict(detail))
        token_topic = self._clients.settings.token_topic
        if describe(self._clients, [token_topic])[token_topic] is None:
            create_token_topic(self._clients)  # the attempt that began here did not get as far as to make it
        proof = super().abort(plan, fence, detail)
        if proof.outcome is Outcome.COMMITTED:
            raise StoreBehindSinkError(
                "the decision log says ABORTED, but the token says delivered: the log was restored from a backup.",
                remedy="Compare both. Then run `airflow ft resume`, or `airflow ft adopt` to accept what the sinks"
                " hold.",
                pipeline=plan.pipeline,
                checkpoint=plan.number,
                participant=self._plan.name,
            )
        return proof

    def proof(self, plan: Plan) -> Proof | None:
        """Return the proof as elsewhere; while a transaction is held that may be this number's, fails at once.

        Raises:
            SinkUnavailableError: such a transaction is held.
            TokenLostError: one that holds rows has lost its token, which existed before they were sent.
        """
        for slot in self._tokens.slots(plan.pipeline):
            token = slot.last_committed()
            if token is not None and token.number >= plan.number:
                continue
            found = self._coordinator.describe(slot.group)
            if found is None or not found.is_open:
                continue
            if token is None and any(topic in self._topics for topic, _ in found.partitions):
                raise TokenLostError(
                    f"the token of group {slot.group!r} is gone while its transaction is open: the consumer group was"
                    " deleted.",
                    remedy=_REDELIVER,
                    **self._tokens.expectation(slot, plan).where(),
                )
            raise SinkUnavailableError(
                f"transactional id {slot.group!r} holds a transaction open (producer id"
                f" {found.producer.producer_id}, epoch {found.producer.epoch}).",
                code="transaction_open",
                remedy="Wait for the next attempt or run, which commits or ends it. Otherwise the brokers end it"
                " after its time-out.",
                participant=self._plan.name,
                group=slot.group,
            )
        return super().proof(plan)

    def orphans(self, pipeline: str, installation: str) -> Sequence[Orphan]:
        """Return transactions that another decision log holds open. Only that one can commit them, with its votes."""
        found = []
        for slot in self._tokens.slots(pipeline):
            token = slot.last_committed()
            if token is None or token.installation == installation:
                continue
            open_one = self._coordinator.describe(slot.group)
            if open_one is not None and open_one.is_open:
                text = (
                    f"transactional id {slot.group!r} holds a transaction open: its records can only be dropped,"
                    " because only the lost decision log knew what a commit of them needs"
                )
                found.append(Orphan(0, slot.group, OrphanKind.PREPARED, token.installation, text))
        return found

    def heuristic(self, plan: Plan) -> str:
        """Return a text if the token says that the number is delivered: someone has ended the held transaction."""
        tokens = [(slot.group, slot.last_committed()) for slot in self._tokens.slots(plan.pipeline)]
        done = [group for group, token in tokens if token is not None and token.delivery(plan.number) is not None]
        if not done:
            return ""
        return (
            f"transactions of {', '.join(done)} ({len(done)} of {len(tokens)}) were committed by hand, with the token"
            f" of checkpoint {plan.number}; records cannot be removed from a topic, so it can only be delivered"
        )

    def close(self) -> None:
        """Closes connections; transactions that are held stay open."""
        self._coordinator.close()
        super().close()

    def _limits(self) -> Mapping[str, Any]:
        """A delivery from the log may take as long as a transaction is held, if the brokers still allow that."""
        if not self._longest:
            return super()._limits()
        if not self._most:
            self._most = longest_transaction(self._clients) or _NO_LIMIT
        return {**super()._limits(), _SETTING: min(self._longest, self._most)}

    # --- holding -------------------------------------------------------------------------------------------------

    def _hold(
        self,
        slot: Slot,
        plan: Plan,
        fence: Fence,
        hold: Mapping[str, Any],
        held: dict[str, Any],
        announced: Announced | None = None,
    ) -> None:
        """Fills the slot's transaction, lets go of its producer and puts what names it into `held`."""
        expected = self._tokens.expectation(slot, plan)

        def work(transaction: Transaction) -> Mapping[str, Any] | None:
            token = slot.read_token(fence)
            if announced is not None and (token is None or token.rank != fence.rank):
                return None  # the head names another attempt
            if judge(token, expected, fence, may_wait=True) is not TokenStatus.READY:
                return None
            assert token is not None  # judge raises TokenLostError
            after = self._send(slot, plan, fence, token, reading, transaction)
            transaction.write(after)
            identity = transaction.identity()
            self._require_open(slot, identity, after)
            note = {
                "producer_id": identity.producer_id,
                "epoch": identity.epoch,
                "records": _records(after.ends or {}),
                "topics": dict(after.topics),
                TIMEOUT: hold.get(_SETTING),
            }
            if announced is not None:
                announced.leave(note)
            transaction.release()
            return note

        yields = announced is not None and announced.yields
        with closing(self._content.read(plan, slot.index)) as reading:
            note = slot.with_producer(fence, work, self._limits(), hold=hold, yields=yields)
        if note is not None:
            held[slot.group] = note

    def _require_open(self, slot: Slot, identity: ProducerIdentity, token: Token) -> None:
        """ProducerLostError unless the coordinator holds just this transaction, with all that was written."""
        found = self._coordinator.describe(slot.group)
        written = {(topic, partition) for topic, ends in (token.ends or {}).items() for partition in ends}
        if found is None or not found.is_open or found.producer != identity:
            raise ProducerLostError(KafkaError(KafkaError.PRODUCER_FENCED), "holding the transaction open")
        if not written <= found.partitions:
            raise SinkUnavailableError(
                f"the coordinator of transactional id {slot.group!r} does not show all partitions that were written.",
                code="transaction_incomplete",
                remedy="Retry. Nothing was committed. If it happens again, grant the user DESCRIBE on the topics.",
                participant=self._clients.conn_id,
                group=slot.group,
            )

    def _token_lost(self, slot: Slot, plan: Plan, identity: ProducerIdentity) -> TokenLostError:
        """Ends the slot's transaction, so that readers do not wait for it, and says what has become of its rows."""
        aborted = self._coordinator.end(slot.group, identity, commit=False) is Ending.DONE
        rows = (
            "The transaction was aborted, so none of its rows is visible."
            if aborted
            else "The transaction is gone as well, so its rows may already be visible."
        )
        return TokenLostError(
            f"the token of group {slot.group!r} is gone. It was there when the transaction was opened, so the consumer"
            f" group was deleted. {rows}",
            remedy=_REDELIVER,
            is_aborted=aborted,
            **self._tokens.expectation(slot, plan).where(),
        )

    def _end_uncounted(self, held: Mapping[str, Any]) -> None:
        """End transactions that no vote counts, so that readers need not wait for their time-out."""
        with suppress(SinkUnavailableError, SinkAccessError):  # once is enough: the next init or the time-out ends them
            for group, note in held.items():
                self._coordinator.end(group, identity_of(note), commit=False)

    def _waits(self, plan: Plan, fence: Fence) -> bool:
        """Return whether an earlier number is undelivered: its transaction may be held open under the same id.

        Tokens only grow, so a token counts even while a transaction is open that will change it. A slot that took no
        part in the predecessor's delivery, as slot 0 names them, may keep an older token.
        """
        predecessor = plan.participant(self._plan.name).predecessor
        tokens = [slot.last_committed(fence) for slot in self._tokens.slots(plan.pipeline)]
        if (first := tokens[0]) is None:
            return False
        if first.number == predecessor:
            tokens = tokens[: first.slots]
        return any(token is not None and token.number < predecessor for token in tokens)


def holding(
    clients: KafkaClients, coordinator: TransactionCoordinator, sinks: Collection[KafkaSink]
) -> Mapping[str, Any]:
    """Return the settings of a producer whose transaction is held, above all how long it may stay open.

    Raises:
        SinkAccessError: the brokers cannot let another process end it, or not hold it that long.
    """
    two_phase_commit = any(sink.two_phase_commit for sink in sinks)
    coordinator.require(two_phase_commit=two_phase_commit)
    if two_phase_commit:
        return {"transaction.two.phase.commit.enable": True}
    longest = longest_transaction(clients)
    given = [sink.transaction_timeout for sink in sinks if sink.transaction_timeout is not None]
    if given:
        wanted = int(max(given).total_seconds() * 1000)
    else:
        own = clients.settings.producer.get("transaction.timeout.ms")
        wanted = int(own) if own is not None else longest or int(BROKERS_DEFAULT_MAXIMUM.total_seconds() * 1000)
    if longest is not None and wanted > longest:
        raise SinkAccessError(
            f"the sink holds a transaction for up to {wanted} ms; transaction.max.timeout.ms of the brokers is"
            f" {longest}.",
            code="limit_reached",
            remedy="Raise transaction.max.timeout.ms of the brokers, or lower KafkaSink(transaction_timeout=...).",
            participant=clients.conn_id,
            setting="transaction.max.timeout.ms",
            value=wanted,
            limit=longest,
        )
    return {"transaction.timeout.ms": wanted}


def _longest(sinks: Collection[KafkaSink], notes: Sequence[Mapping[str, Any]]) -> int:
    """Milliseconds that the sinks or the vote have named; 0: none."""
    given = [int(sink.transaction_timeout.total_seconds() * 1000) for sink in sinks if sink.transaction_timeout]
    return max([*given, *(int(note.get(TIMEOUT) or 0) for note in notes)], default=0)


def identity_of(note: Mapping[str, Any]) -> ProducerIdentity:
    """Return the transaction that a note names."""
    return ProducerIdentity(int(note["producer_id"]), int(note["epoch"]))


def _records(ends: Ends) -> dict[str, dict[str, int]]:
    return {topic: {str(p): end.records for p, end in sorted(by.items())} for topic, by in ends.items()}
