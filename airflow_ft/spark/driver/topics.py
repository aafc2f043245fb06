"""Topics that were deleted and recreated: their offsets begin again at 0, so an old position means other records.

A topic's id (KIP-516) distinguishes it from any other topic of the same name. The ids are part of the position:
Spark's location has them beside the offsets (`airflow_ft.spark.state.status`), and each checkpoint for people. They
are compared when an attempt begins, and again for each batch between its last row and its publication. Equal ids
before and after reading prove that the records are those of the topic that the offsets count.

| the topic's id | `fail_on_data_loss` | without it |
| --- | --- | --- |
| differs, or a pattern's topic is gone | DataLossError, nothing is computed | a warning, read from its beginning |
| changes while it is read | DataLossError, nothing is published | StageError, so the next attempt does that |
| is unknown (brokers before Kafka 2.8 give none) | no difference is seen | the same |

One of several brokers may lag, and know an older topic, or none yet. So a topic that seems to be gone or replaced is
checked again a second later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_ft.clients.kafka.grants import create_topic
from airflow_ft.protocol.errors import AirflowFtError, DataLossError, StageError
from airflow_ft.protocol.model import canonical_json
from airflow_ft.sources.kafka import KafkaSource
from airflow_ft.spark.state.status import Ids, LocationStatus, Offsets

if TYPE_CHECKING:
    from airflow_ft.spark.driver.kafka_admin import TopicAdmin

_AGAIN_SECONDS = 1.0
_GONE = (
    " If someone deleted it, its unread records are lost. A recreated topic is another one: fail_on_data_loss decides"
    " whether the source reads it."
)

log = logging.getLogger("airflow_ft.spark")


class Topics:
    """The topics of an attempt's Kafka sources, by the sources' places among those of the query.

    `started`: by source, the ids of topics of which a starting position was looked up before.
    """

    def __init__(
        self,
        sources: Mapping[int, tuple[str, KafkaSource]],
        admins: Mapping[int, TopicAdmin],
        started: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._started = started or {}
        self._sources, self._admins = sources, admins
        self._known: dict[int, dict[str, str]] = {}
        self._reading: Ids = {}

    @property
    def known(self) -> Ids:
        """The ids of all topics that are read, as they were seen first."""
        return self._known

    def begin(self, status: LocationStatus) -> Ids:
        """Compare the positions of an attempt with the current topics; returns the topics whose positions are void.

        Raises:
            DataLossError: as the module says.
            StageError: a topic of the list does not exist, so Spark could not read it.
        """
        void: dict[int, dict[str, str]] = {}
        for index, (name, source) in self._sources.items():
            offsets, ids = status.offsets.get(index, {}), status.ids.get(index, {})
            counted = {topic for topic in offsets if source.pattern or topic in source.topics}
            before = {**dict.fromkeys(source.topics, ""), **{topic: ids.get(topic, "") for topic in counted}}
            now = self._known[index] = self._settled(index, self._admins[index].topics(sorted(counted)), before)
            for topic, old in self._started.get(name, {}).items():
                if is_other(old, now.get(topic)):
                    raise self._too_new(topic, name)
            for topic in source.topics:
                if topic not in now:
                    raise StageError(
                        f"topic {topic!r} of source {name!r} does not exist.",
                        code="topic_missing",
                        participant=source.conn_id,
                        remedy=f"Create it: {create_topic(topic)}. Or remove it from the source."
                        + (_GONE if topic in counted else ""),
                        source=name,
                        topic=topic,
                    )
            lost = {t: ids.get(t, "") for t in sorted(counted) if is_other(ids.get(t, ""), now.get(t))}
            if lost and source.fail_on_data_loss:
                raise self._lost(index, lost, now, offsets, "Nothing was read or published.")
            for topic, old in lost.items():
                log.warning(
                    "source %s: topic %s was %s, read up to %s. Its unread records are lost. Because fail_on_data_loss"
                    " is False, the source reads the new topic from its beginning",
                    name,
                    topic,
                    _what_became(old, now.get(topic)),
                    canonical_json(offsets.get(topic, {})),
                )
            if lost:
                void[index] = lost
        return void

    def ids_of(self, offsets: Offsets, recorded: Ids) -> Ids:
        """Return the ids of the topics in the offsets that an attempt starts from.

        A topic that is no longer read keeps its `recorded` id, for the time when it is read again.
        """
        found: dict[int, dict[str, str]] = {}
        for index in self._sources:
            ids = {**recorded.get(index, {}), **self._known[index]}
            found[index] = {topic: ids[topic] for topic in sorted(offsets.get(index, {})) if topic in ids}
        return found

    def reading(self, offsets: Offsets) -> Ids:
        """The ids of the topics in a batch's end offsets, before it is computed; `check` compares them again."""
        found: dict[int, dict[str, str]] = {}
        for index, (name, _) in self._sources.items():
            topics, known = sorted(offsets.get(index, {})), self._known[index]
            if appeared := [topic for topic in topics if topic not in known]:
                known.update(self._admins[index].ids(appeared))
            if gone := [topic for topic in topics if topic not in known]:
                raise StageError(
                    f"topics of source {name!r} appeared and disappeared: {', '.join(gone)}.",
                    code="topic_recreated",
                    remedy="Do nothing: the next attempt looks again.",
                    source=name,
                    topics=gone,
                )
            found[index] = {topic: known[topic] for topic in topics}
        self._reading = found
        return found

    def check(self) -> None:
        """Raise unless the topics of a batch whose rows are written are still the same. Call it before publication."""
        if (error := self._loss_of(self._reading)) is not None:
            raise error

    def check_start(self, offsets: Offsets) -> Ids:
        """The ids of the topics at which a first query begins; StageError unless they have stayed the same so far.

        Spark has looked these offsets up between `begin` and now.
        """
        found: dict[int, dict[str, str]] = {}
        for index, topics in offsets.items():
            if index not in self._sources:
                continue
            name, _ = self._sources[index]
            known, now = self._known[index], self._admins[index].ids(sorted(topics))
            for topic in sorted(topics):
                if topic not in known or is_other(known[topic], now.get(topic)):
                    raise self._too_new(topic, name)
            found[index] = {topic: known[topic] for topic in sorted(topics)}
        return found

    def explain(self) -> AirflowFtError | None:
        """Return whether a query may have failed because a topic was recreated under it: the error that says so."""
        try:
            return self._loss_of(self._known)
        except Exception:  # the JVM may be gone: then that is the reason
            return None

    def latest(self, index: int, names: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        """The ends of topics of one source, by partition, as in Spark's offsets."""
        return self._admins[index].latest(names)

    def close(self) -> None:
        """Closes the clients."""
        for admin in self._admins.values():
            admin.close()

    def _too_new(self, topic: str, source: str) -> StageError:
        return StageError(
            f"topic {topic!r} of source {source!r} was created while its starting position was looked up.",
            code="topic_recreated",
            remedy="Do nothing: the next attempt looks again.",
            source=source,
            topics=[topic],
        )

    def _loss_of(self, ids: Ids) -> DataLossError | StageError | None:
        """Return what to raise where a topic is not the one that it was; None: all are."""
        for index, before in ids.items():
            name, source = self._sources[index]
            now = self._settled(index, self._admins[index].ids(sorted(before)), before)
            lost = {topic: old for topic, old in before.items() if is_other(old, now.get(topic))}
            if lost and source.fail_on_data_loss:
                return self._lost(index, lost, now, {}, "Nothing of this batch is published.")
            if lost:
                return StageError(
                    f"topics of source {name!r} were deleted or recreated while Spark read them: {', '.join(lost)}.",
                    code="topic_recreated",
                    remedy="Do nothing: the next attempt reads the new topics from their beginning"
                    " (fail_on_data_loss is False).",
                    source=name,
                    topics=sorted(lost),
                )
        return None

    def _settled(self, index: int, now: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
        """Return what the brokers say `now`, and a second later of topics that seem not to be those of `before`."""
        doubted = {topic for topic, old in before.items() if is_other(old, now.get(topic))}
        found = {topic: id for topic, id in now.items() if topic not in doubted}
        if doubted:
            time.sleep(_AGAIN_SECONDS)
            found |= self._admins[index].ids(sorted(doubted))
        return found

    def _lost(
        self, index: int, lost: Mapping[str, str], now: Mapping[str, str], offsets: Mapping[str, Any], consequence: str
    ) -> DataLossError:
        name, source = self._sources[index]
        losses = []
        for topic, old in lost.items():
            read = f", read up to {canonical_json(offsets[topic])}" if topic in offsets else ""
            losses.append(f"topic {topic!r} was {_what_became(old, now.get(topic))}{read}")
        return DataLossError(
            f"source {name!r}: {'; '.join(losses)}. The unread records of the old topic are lost, and the old offsets"
            f" point at other records of the new one. {consequence}",
            code="topic_recreated",
            participant=source.conn_id,
            remedy=f"Set fail_on_data_loss=False of the source {name!r} for one run: it reads the new topic from its"
            " beginning and continues in the others. Then set it back.",
            source=name,
            topics=sorted(lost),
        )


def _what_became(old: str, now: str | None) -> str:
    was = f"its id was {old or 'not recorded'}"
    return f"deleted ({was})" if now is None else f"deleted and recreated ({was} and is {now})"


def is_other(old: str, now: str | None) -> bool:
    """Return whether a topic is gone or was replaced; brokers without ids ("") can only show that it is gone."""
    return now is None or bool(old and now and old != now)


def by_topic(offsets: list[Any]) -> Offsets:
    """Return those offsets that have topics, by the place of their source."""
    return {index: found for index, found in enumerate(offsets) if isinstance(found, dict)}
