"""Kafka without transactions, for AT_LEAST_ONCE: rows are sent, and readers see them as they arrive.

The cluster stores no proof of a delivery. The proof is the acknowledgements that this process counted, so a delivery
whose end is not in the decision log is repeated from its first row.

The producer delivers nothing after a record that it could not deliver (`plain_producer`). So the acknowledgement of a
partition's last record proves all before it, as in a transaction (`batches`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from airflow_ft.clients.kafka.topics import topic_ids
from airflow_ft.protocol.errors import StateConflictError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.set_aside import SetAside, together
from airflow_ft.protocol.set_aside import detail as set_aside_detail
from airflow_ft.protocol.votes import Outcome, Proof, SinkHead, Vote
from airflow_ft.sinks.kafka.cluster import KafkaParticipant, add_ends
from airflow_ft.sinks.kafka.content import PlanContent
from airflow_ft.sinks.kafka.sending import AckCounter, ProducerLostError, Sender, merge_ends
from airflow_ft.sinks.kafka.tokens import CLUSTER
from airflow_ft.sinks.set_aside import DeliveredLog


class PlainParticipant(KafkaParticipant):
    """Keeps its producer for all that it delivers; remembers what was acknowledged, and nothing else."""

    _sender: Sender | None = None
    _done: Proof | None = None

    def prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """Return whether the topics would take the rows, as they were when they were first looked at."""
        if self._sender is None:
            return self._check_rows(plan, self._known.limits(self._topics))
        return {}

    def commit(self, plan: Plan, fence: Fence, vote: Vote | None = None, *, set_aside: bool = False) -> Proof:
        """Sends all rows, and waits until they are acknowledged. `set_aside`: without those that `prepare` refuses."""
        slots = self._tokens.slots(plan.pipeline)
        aside = [self._set_aside(slot, plan) for slot in slots] if set_aside else []
        content = self._content
        if aside:
            content = PlanContent(self._plan.name, self._sinks, DeliveredLog.without(self._wal, aside))
        sender = self._sender = self._sender or Sender(self._clients, self._clients.plain_producer(self._limits()))
        sender.look_again()
        counters: list[Mapping[str, AckCounter]] = []
        try:
            for slot in slots:
                with closing(content.read(plan, slot.index)) as reading:
                    counters.append(content.send(plan, slot.index, reading, sender))
        except BaseException as error:
            self._discard()
            if isinstance(error, ProducerLostError):
                raise self._clients.error(error.error, f"delivering without a transaction: {error.doing}") from error
            raise
        self._done = self._acknowledged(plan, fence, counters, aside)
        return self._done

    def proof(self, plan: Plan) -> Proof | None:
        """Return this object's last proof if it belongs to the plan; otherwise None."""
        found = self._done
        return found if found is not None and (found.number, found.digest) == (plan.number, plan.digest) else None

    def abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        """Never: it is decided before anything is sent."""
        raise StateConflictError(
            "the checkpoint was decided when it was planned (AT_LEAST_ONCE), so it cannot be aborted.",
            remedy="Run `airflow ft recover` to deliver it.",
            pipeline=plan.pipeline,
            checkpoint=plan.number,
            participant=self._plan.name,
        )

    def head(self, pipeline: str) -> SinkHead | None:
        """None: it remembers nothing."""
        return None

    def remembers(self, pipeline: str) -> bool:
        """There is nothing that it could lose."""
        return True

    def seed(self, fence: Fence, number: int, last: Proof | None = None) -> None:
        """There is nothing to set."""

    def restore(self, fence: Fence, plan: Plan) -> None:
        """There is nothing to set."""

    def renew(self, fence: Fence) -> None:
        """There is nothing to renew. The token of former deliveries, if there is one, is left to them."""

    def adopt(self, fence: Fence, number: int) -> None:
        """There is nothing to set."""

    def close(self) -> None:
        """Closes all clients."""
        self._discard()
        super().close()

    def _discard(self) -> None:
        if self._sender is not None:
            self._sender.discard()
        self._sender = None

    def _acknowledged(
        self,
        plan: Plan,
        fence: Fence,
        counters: Sequence[Mapping[str, AckCounter]],
        aside: Sequence[Mapping[str, SetAside]],
    ) -> Proof:
        partitions: dict[str, Any] = {}
        counts = dict.fromkeys(self._sinks, 0)
        for each in counters:
            add_ends(partitions, merge_ends(each.values()))
            for name, counter in each.items():
                counts[name] += counter.total
        into = {topic: found for topic, found in topic_ids(self._clients, partitions).items() if found}
        detail = {"attempt": fence.attempt, "partitions": partitions, "topics": into, CLUSTER: self._tokens.cluster}
        detail |= set_aside_detail(together(aside))
        return Proof(self._plan.name, plan.number, Outcome.COMMITTED, plan.digest, fence.epoch, counts, detail)
