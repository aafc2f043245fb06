"""`KafkaSink`, with which a DAG author delivers into a topic. Imports nothing heavy: DAG files import it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Self

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.arguments import check_known, check_text, check_type, is_template
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import Promise
from airflow_ft.sinks.base.server_sink import ServerSink
from airflow_ft.sinks.base.settings import shared_setting
from airflow_ft.sinks.registry import Strategy

if TYPE_CHECKING:
    from airflow_ft.protocol.config import CheckpointConfig

STRATEGIES: Mapping[str, Strategy] = {
    "transaction": Strategy(
        Promise.REDO,
        "a transaction with the token, after the decision; sent again until the token proves it",
        "all at once to read_committed, slot by slot",
    ),
    "held": Strategy(
        Promise.TWO_PHASE,
        "a transaction that is filled and held open before the decision",
        "all at once to read_committed, slot by slot",
        has_branches=True,
    ),
}
BROKERS_DEFAULT_MAXIMUM = timedelta(minutes=15)  # transaction.max.timeout.ms by default
FORMATS = ("json", "raw")
MAX_SLOTS = 16  # transactional ids are few and fixed: each must take part in every checkpoint

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_ROLES = ("key", "value", "headers", "partition", "timestamp")


@by_name
@dataclass(frozen=True, kw_only=True)
class KafkaSink(ServerSink):
    """A topic that receives one record a row, exactly once.

    Args:
        topic: an existing topic. May contain Jinja, which must be rendered before the plan is made.
        conn_id: Airflow connection of type `kafka`, whose extra holds librdkafka settings. All sinks of one connection
            are delivered in the same transaction, and share the largest `slots` among them.
        strategy: "transaction": rows and token in one Kafka transaction, after the decision. "held": the transaction
            is filled and held open before the decision, so that committing is one small request. It needs the extra
            `airflow-ft[held]`, and brokers that know EndTxn version 5 and have transaction.version 2 (Kafka 4.0).
            Readers under read_committed wait at an open transaction, also for records of others that come after it.
        key: column with the record's key: string, binary, or integer (sent as decimal text). Null is no key.
        value: column with the record's value as string or binary, sent byte by byte; null is a tombstone record.
            Without it the value is a JSON object of all columns that have no other role (the key column is not
            repeated in it; nulls are written as null).
        headers: column with the headers: array<struct<key: string, value: binary or string>>, or map<string, binary or
            string>.
        partition: integer column with the partition's number; null leaves the choice to the partitioner (murmur2 of
            the key as in Java and Spark, random without a key).
        timestamp: column with the record's time: timestamp (sent in milliseconds, floor) or integer (milliseconds
            since 1970). Null is the time of delivery.
        format: "json" or "raw"; by default "raw" when `value` is given, else "json".
        slots: parallel transactions, 1 to 16. With one, the order of the log is the order in each partition. With
            more, only the order within each file of the log is kept. A reader may see one slot's rows a moment before
            another's.
        transaction_timeout: with "held", how long the brokers keep the transaction open before they abort it (then its
            rows are sent once more); at most their transaction.max.timeout.ms, which is the default.
        two_phase_commit: with "held", asks for a transaction without a time-out (KIP-939,
            transaction.two.phase.commit.enable); refused where brokers or client do not know it.
        shared: other pipelines deliver into this topic too, and their sinks declare it as well.

    Raises:
        ConfigurationError: a setting is unknown, or contradicts another.
    """

    topic: str
    conn_id: str = "kafka_default"
    strategy: str = "transaction"
    key: str | None = None
    value: str | None = None
    headers: str | None = None
    partition: str | None = None
    timestamp: str | None = None
    format: str | None = None
    slots: int = 1
    transaction_timeout: timedelta | None = None
    two_phase_commit: bool = False
    shared: bool = False

    kind: ClassVar[str] = "kafka"
    strategies: ClassVar[Mapping[str, Strategy]] = STRATEGIES

    def __post_init__(self) -> None:
        for name in ("topic", "conn_id", "strategy"):
            check_text(name, getattr(self, name), of="KafkaSink")
        for name in (*_ROLES, "format"):
            check_text(name, getattr(self, name), optional=True, of="KafkaSink")
        for name in (*_ROLES, "format", "strategy"):
            check_known(name, getattr(self, name), of="KafkaSink")
        for name in ("two_phase_commit", "shared"):
            check_type(name, getattr(self, name), bool, "Give True or False.", of="KafkaSink")
        if not is_template(self.topic) and (not _TOPIC.fullmatch(self.topic) or self.topic in (".", "..")):
            raise ConfigurationError(
                f"{self.topic!r} is not a valid name of a Kafka topic.",
                code="name_invalid",
                remedy="Use 1 to 249 letters, digits, '.', '_' and '-'.",
                argument="topic",
                value=self.topic,
            )
        if isinstance(self.conn_id, str) and not self.conn_id.strip():
            raise self._error(
                "conn_id is empty.", "Name an Airflow connection of type kafka.", "argument_missing", "conn_id"
            )
        if self.strategy not in STRATEGIES:
            raise self._error(
                f"there is no strategy {self.strategy!r}.",
                f"Use one of {', '.join(sorted(STRATEGIES))}.",
                "argument_invalid",
                "strategy",
            )
        roles = self.roles
        if empty := [role for role, column in roles.items() if not column]:
            raise self._error(
                f"{empty[0]}: the column's name is empty.",
                f"Name the column, or remove {empty[0]}=.",
                "argument_invalid",
                empty[0],
            )
        if len(set(roles.values())) < len(roles):
            raise self._error(
                f"a column has two roles: {', '.join(f'{role}={name}' for role, name in roles.items())}.",
                "Give each role its own column. Copy the column in the job if two roles need it.",
                "arguments_conflict",
            )
        if self.format is None:
            object.__setattr__(self, "format", "raw" if self.value is not None else "json")
        if self.format not in FORMATS:
            raise self._error(
                f"there is no format {self.format!r}.",
                f"Use one of {', '.join(FORMATS)}.",
                "argument_invalid",
                "format",
            )
        if (self.format == "raw") is not (self.value is not None):
            raise self._error(
                f"format={self.format!r} and value={self.value!r} contradict each other.",
                "Use value=COLUMN to send its bytes (raw). Without value=, the sink sends the other columns (json).",
                "arguments_conflict",
                "format",
            )
        if isinstance(self.slots, bool) or not isinstance(self.slots, int) or not 1 <= self.slots <= MAX_SLOTS:
            raise self._error(
                f"slots={self.slots!r} is out of range.", f"Use 1 to {MAX_SLOTS}.", "argument_invalid", "slots"
            )
        self._check_holding()

    def at_least_once(self) -> Promise:
        """Rows go without a transaction."""
        if self.strategy == "held":
            raise self._error(
                "strategy 'held' holds rows back for a decision, which CheckpointingMode.AT_LEAST_ONCE does not have.",
                "Remove strategy=, or use CheckpointingMode.EXACTLY_ONCE.",
                "arguments_conflict",
                "strategy",
            )
        return Promise.AT_LEAST_ONCE

    @property
    def branches(self) -> int:
        """Most branches of a checkpoint: its slots."""
        return self.slots

    @property
    def roles(self) -> Mapping[str, str]:
        """Return which column has which role, for those that are given."""
        named = {role: getattr(self, role) for role in _ROLES}
        return {role: column for role, column in named.items() if column is not None}

    def check_checkpointing(self, config: CheckpointConfig) -> None:
        """Check that a held transaction may live as long as a checkpoint may take.

        A transaction that the brokers abort sooner would usually be sent twice.

        Raises:
            ConfigurationError: its time-out is shorter.
        """
        if self.strategy != "held" or self.two_phase_commit:
            return
        lives = self.transaction_timeout or BROKERS_DEFAULT_MAXIMUM
        if lives < config.timeout:
            given = (
                "transaction_timeout" if self.transaction_timeout else "the brokers' default transaction.max.timeout.ms"
            )
            raise self._error(
                f"{given} ({lives}) is shorter than CheckpointConfig.timeout ({config.timeout}).",
                "Give a longer transaction_timeout (and raise transaction.max.timeout.ms of the brokers to it), or a"
                " shorter CheckpointConfig.timeout.",
                "arguments_conflict",
                "transaction_timeout",
            )

    def settings(self) -> Mapping[str, Any]:
        """Plain JSON for the plan; `from_settings` reads it back. ConfigurationError while Jinja is left in it."""
        if is_template(self.topic):
            raise self._error(
                "the topic still contains Jinja.",
                "Render it before the plan is made (template fields).",
                "template_not_rendered",
                "topic",
            )
        settings: dict[str, Any] = {"topic": self.topic, **self.roles, "format": self.format, "slots": self.slots}
        if self.transaction_timeout is not None:
            settings["transaction_timeout"] = self.transaction_timeout.total_seconds()
        if self.two_phase_commit:
            settings["two_phase_commit"] = True
        return settings | shared_setting(self.shared)

    @classmethod
    def from_settings(cls, conn_id: str, strategy: str, settings: Mapping[str, Any]) -> Self:
        """The sink that a plan describes; ConfigurationError when this version does not know it."""
        known = {field.name for field in fields(cls)} - {"conn_id", "strategy"}
        unknown = sorted(set(settings) - known)
        if unknown or "topic" not in settings:
            raise ConfigurationError(
                f"a Kafka sink of the plan has settings that this version does not know: {', '.join(unknown)}."
                if unknown
                else "a Kafka sink of the plan names no topic.",
                code="newer_release",
                remedy="Deliver with the version of airflow-ft that made the plan, or with a newer one.",
                participant=conn_id,
                settings=unknown,
            )
        given = dict(settings)
        if "transaction_timeout" in given:
            given["transaction_timeout"] = timedelta(seconds=given["transaction_timeout"])
        return cls(conn_id=conn_id, strategy=strategy, **given)

    def _check_holding(self) -> None:
        timeout = self.transaction_timeout
        if timeout is not None and (not isinstance(timeout, timedelta) or timeout < timedelta(seconds=1)):
            raise self._error(
                f"transaction_timeout is {timeout!r}.",
                "Give a timedelta of at least one second.",
                "argument_invalid",
                "transaction_timeout",
            )
        if self.strategy != "held" and (timeout is not None or self.two_phase_commit):
            raise self._error(
                f"strategy {self.strategy!r} holds no transaction open.",
                'Remove transaction_timeout and two_phase_commit, or use strategy="held".',
                "arguments_conflict",
                "strategy",
            )
        if timeout is not None and self.two_phase_commit:
            raise self._error(
                "a transaction with two_phase_commit has no time-out.",
                "Remove transaction_timeout or two_phase_commit.",
                "arguments_conflict",
                "transaction_timeout",
            )

    def _error(self, what: str, remedy: str, code: str, argument: str = "", **fields: Any) -> ConfigurationError:
        return ConfigurationError(
            f"KafkaSink(topic={self.topic!r}): {what}", code=code, remedy=remedy, argument=argument, **fields
        )


def lacking(strategy: str) -> dict[str, str]:
    """Return the package that a strategy needs if it is not installed, by the extra that installs it."""
    return {"held": "kafka-python"} if strategy == "held" and not has_second_client() else {}


def has_second_client() -> bool:
    """Return whether kafka-python is installed, which sends what librdkafka has no call for; without importing it."""
    return find_spec("kafka") is not None
