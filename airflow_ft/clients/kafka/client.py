"""librdkafka clients from an Airflow connection, and its errors as ours.

Airflow's `kafka` connection holds librdkafka settings in its extra, and so does this one; settings whose names begin
with `airflow_ft_` are our own and explained at `KafkaSettings`. No message made here contains a setting's value.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from airflow_ft.clients.foreign_connections import require_type
from airflow_ft.clients.kafka.connection import LOG_IN, SERVERS, missing, substitute, with_fields, without_java
from airflow_ft.clients.kafka.errors import REFUSED, REMEDIES, SILENT, is_refusal
from airflow_ft.protocol.background import beside
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, SinkUnavailableError

log = logging.getLogger(__name__)
_THREAD = "airflow-ft-kafka-call"
T = TypeVar("T")
C = TypeVar("C", bound=Producer | Consumer | AdminClient)


def bounded(call: Callable[[], T], seconds: float) -> T:
    """Return the call's result.

    For calls of librdkafka that may not return. After a time-out the call continues in a thread, perhaps without end.

    Raises:
        TimeoutError: there was no result in `seconds`.
    """
    return beside(call, _THREAD).result(seconds)


class _Quietly(logging.LoggerAdapter[logging.Logger]):
    """Librdkafka's own lines, as debug messages: it logs every attempt to reconnect as an error."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        super().log(logging.DEBUG, msg, *args, **kwargs)


_librdkafka_log = _Quietly(logging.getLogger(f"{__name__}.librdkafka"))
DEFAULT_TOKEN_TOPIC = "airflow_ft.tokens"
_DEFAULT_TIMEOUT = 60.0
_TRANSACTION_TIMEOUT = 600_000
_HASTE = 1.0  # seconds that a new producer waits for its first connection
_LONGEST_SESSION = 45.0  # seconds: librdkafka's own
_ASKED = 3  # times: a connection to a load balancer stays, and answers for ever
_OURS = "airflow_ft_"
# A connection is shared with consumers and producers of other code: what only they understand is left to them.
_CONSUMER_NAMES = """
    group.id group.instance.id group.protocol group.protocol.type group.remote.assignor auto.offset.reset
    enable.auto.commit enable.auto.offset.store auto.commit.interval.ms session.timeout.ms heartbeat.interval.ms
    max.poll.interval.ms partition.assignment.strategy isolation.level enable.partition.eof check.crcs
    fetch.wait.max.ms fetch.queue.backoff.ms fetch.message.max.bytes max.partition.fetch.bytes fetch.max.bytes
    fetch.min.bytes fetch.error.backoff.ms queued.min.messages queued.max.messages.kbytes
    coordinator.query.interval.ms
"""
_PRODUCER_NAMES = """
    transactional.id transaction.timeout.ms enable.idempotence enable.gapless.guarantee queue.buffering.max.messages
    queue.buffering.max.kbytes queue.buffering.max.ms linger.ms message.send.max.retries retries
    queue.buffering.backpressure.threshold compression.codec compression.type compression.level batch.num.messages
    batch.size delivery.report.only.error dr_cb dr_msg_cb sticky.partitioning.linger.ms acks
    request.required.acks request.timeout.ms message.timeout.ms delivery.timeout.ms partitioner
"""
_CONSUMER_ONLY = frozenset(_CONSUMER_NAMES.split())
_PRODUCER_ONLY = frozenset(_PRODUCER_NAMES.split())
_CALLBACKS = frozenset({"error_cb", "throttle_cb", "stats_cb", "log_cb", "on_commit", "on_delivery", "dr_cb", "logger"})


@dataclass(frozen=True)
class KafkaSettings:
    """A connection's settings, split by who needs them.

    Settings of our own in the connection's extra: `airflow_ft_token_topic` (default "airflow_ft.tokens"), and
    `airflow_ft_timeout`, the seconds (default 60) that a broker may be silent before SinkUnavailableError.
    """

    conn_id: str
    common: Mapping[str, Any] = field(repr=False)
    producer: Mapping[str, Any] = field(repr=False)
    token_topic: str = DEFAULT_TOKEN_TOPIC
    timeout: float = _DEFAULT_TIMEOUT

    @property
    def client_id(self) -> str:
        """Return what librdkafka calls itself."""
        return str(self.common.get("client.id", "rdkafka"))

    @property
    def transaction_timeout(self) -> int:
        """Milliseconds after which brokers end a transaction (`transaction.timeout.ms`)."""
        return int(self.producer.get("transaction.timeout.ms", _TRANSACTION_TIMEOUT))

    @property
    def partitioner(self) -> str:
        """Return which of librdkafka's partitioners chooses: by default as Java and Spark do."""
        return str(self.producer.get("partitioner", "murmur2_random"))

    @classmethod
    def from_connection(cls, connection: ConnectionInfo) -> KafkaSettings:
        """Reads extra and fields (`connection.with_fields`); SinkAccessError when they cannot work."""
        require_type(connection, "kafka")
        extra = with_fields(connection)

        def refuse(what: str, remedy: str, setting: str) -> SinkAccessError:
            return SinkAccessError(
                what, code="connection_invalid", remedy=remedy, participant=connection.conn_id, setting=setting
            )

        own = {key: extra.pop(key) for key in list(extra) if key.startswith(_OURS)}
        token_topic = own.pop(f"{_OURS}token_topic", DEFAULT_TOKEN_TOPIC)
        try:
            timeout = float(own.pop(f"{_OURS}timeout", _DEFAULT_TIMEOUT))
        except (TypeError, ValueError):
            timeout = 0
        if own or not token_topic or not isinstance(token_topic, str) or not timeout > 0:
            wrong = ", ".join(own) or ("airflow_ft_token_topic" if timeout > 0 else "airflow_ft_timeout")
            raise refuse(
                f"the extra has a setting that cannot be used: {wrong}.",
                "Set airflow_ft_token_topic to the name of a topic and airflow_ft_timeout to seconds above 0, or remove"
                " them. There are no other settings that begin with airflow_ft_.",
                wrong,
            )
        if not extra.get(SERVERS):
            raise refuse(
                "the connection has no bootstrap.servers.",
                f'Add {{"bootstrap.servers": "HOST:9092"}} to the extra of connection {connection.conn_id}.',
                SERVERS,
            )
        if lacking := missing(extra):
            raise refuse(
                f"security.protocol of the connection needs a login, but the {lacking} is missing.", LOG_IN, lacking
            )
        extra, java = without_java(extra)
        if java:
            raise refuse(
                f"only Java's client knows {java}, and the extra has nothing that replaces it for librdkafka.",
                f"Keep {java}, and add to the extra of connection {connection.conn_id}: {substitute(java)}.",
                java,
            )
        if not str(extra.get("transaction.timeout.ms", 1)).strip().isdigit():
            raise refuse(
                "transaction.timeout.ms is not a number.",
                "Give milliseconds, such as 900000.",
                "transaction.timeout.ms",
            )
        if isinstance(extra.get("oauth_cb"), str):
            raise refuse(
                "oauth_cb is a name, not a function.",
                "Remove it, because an extra cannot hold a function. Set sasl.oauthbearer.method to oidc with its"
                " sasl.oauthbearer.* settings, or log in with SCRAM.",
                "oauth_cb",
            )
        extra = {key: value for key, value in extra.items() if key not in _CONSUMER_ONLY | _CALLBACKS}
        return cls(
            conn_id=connection.conn_id,
            common={key: value for key, value in extra.items() if key not in _PRODUCER_ONLY},
            producer={key: value for key, value in extra.items() if key in _PRODUCER_ONLY},
            token_topic=token_topic,
            timeout=timeout,
        )


class KafkaClients:
    """Makes clients for one connection and explains their errors.

    Librdkafka reports a wrong password only through a callback, while the call itself times out; the last such
    error is kept, so that the time-out can be explained.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self._ready: dict[str, tuple[Mapping[str, Any], Future[Producer]]] = {}  # by transactional id
        self._access_error: KafkaError | None = None
        self._admin: AdminClient | None = None
        self._lock = threading.Lock()

    @property
    def conn_id(self) -> str:
        """The connection, for messages."""
        return self.settings.conn_id

    @property
    def timeout(self) -> float:
        """Seconds that a broker may be silent."""
        return self.settings.timeout

    def producer(
        self, transactional_id: str, limits: Mapping[str, Any], strategy: Mapping[str, Any] | None = None
    ) -> Producer:
        """A producer that has not been initialised.

        `limits` are defaults that depend on the topics; `strategy` are settings that go before the connection's.
        """
        if strategy:
            return self._transactional(transactional_id, limits, strategy)
        made_for, ready = self._ready.pop(transactional_id, ({}, None))
        if ready is not None and limits.items() <= made_for.items() and ready.exception() is None:
            return ready.result()
        return self._transactional(transactional_id, limits, {})

    def make_ready(self, transactional_id: str, limits: Mapping[str, Any]) -> None:
        """Makes, and connects, the next producer of an id beside what else is done. Only init makes it an owner."""
        if transactional_id in self._ready:
            return
        self._ready[transactional_id] = (
            limits,
            beside(lambda: self._transactional(transactional_id, limits, {}), _THREAD),
        )

    def close(self) -> None:
        """Release unused producers, which would keep connecting."""
        self._ready.clear()

    def plain_producer(self, limits: Mapping[str, Any]) -> Producer:
        """Return a producer without transactions. After an undeliverable record it delivers none, so there are no
        gaps.

        Its records do not time out (that would leave gaps), so the caller must limit its wait.
        """
        return self._new_producer(limits, {"enable.gapless.guarantee": True, "message.timeout.ms": 0})

    def _transactional(self, transactional_id: str, limits: Mapping[str, Any], strategy: Mapping[str, Any]) -> Producer:
        defaults = {"transaction.timeout.ms": self.settings.transaction_timeout, **limits}
        producer = self._new_producer(defaults, {**strategy, "transactional.id": transactional_id})
        self._connect(producer)
        return producer

    def _new_producer(self, limits: Mapping[str, Any], strategy: Mapping[str, Any]) -> Producer:
        forced = {
            **strategy,
            "enable.idempotence": True,
            "acks": "all",  # an acknowledged record must survive the leader
            "delivery.report.only.error": False,  # acknowledged records are counted (proof)
        }
        given = dict(self.settings.producer)
        given.pop("request.required.acks", None)  # an alias of acks would overrule it
        given.pop("transaction.timeout.ms", None)  # `limits` has it
        if "transactional.id" not in strategy:
            for name in ("transactional.id", "delivery.timeout.ms"):
                given.pop(name, None)
        defaults = {
            "partitioner": self.settings.partitioner,
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
            **limits,
        }
        if not given.keys() & {"compression.type", "compression.codec"}:
            defaults["compression.type"] = "lz4"
        if given.keys() & {"linger.ms", "queue.buffering.max.ms"}:
            del defaults["linger.ms"]
        return self._make(Producer, {**defaults, **given, **forced})

    def _connect(self, producer: Producer) -> None:
        """Waits until a broker is connected, for a moment: `init_transactions` would wait longer.

        It looks for the coordinator at once, and when no broker is connected then, again only half a second later. The
        connection that the first answer comes by is given up for one to the broker that this names, so that answer
        alone is not enough. What is wrong with the brokers, init_transactions says, and waits for them.
        """
        with suppress(KafkaException):
            for _ in range(_ASKED):
                found = producer.list_topics(topic=self.settings.token_topic, timeout=min(_HASTE, self.timeout))
                if found.orig_broker_id >= 0:  # it came by the connection that stays
                    return

    def consumer(self, group: str, isolation: str = "read_committed") -> Consumer:
        """A consumer that only reads the token of its group.

        Under read_committed the brokers give no answer while a transaction is open that writes the token; under
        read_uncommitted they give the one before it, which may be old.
        """
        own: dict[str, Any] = {"group.id": group, "isolation.level": isolation, "enable.auto.commit": False}
        # A commit waits this long for the group's coordinator.
        own["session.timeout.ms"] = int(min(self.timeout, _LONGEST_SESSION) * 1000)
        return self._make(Consumer, own)

    def admin(self) -> AdminClient:
        """The administration client, made once."""
        with self._lock:  # slots work in threads
            if self._admin is None:
                self._admin = self._make(AdminClient, {})
            return self._admin

    def renew_admin(self) -> None:
        """The next call of `admin` makes a new one, for this one's metadata name no leader, or an old one.

        ListOffsets of librdkafka 2.16.0 goes by what it has cached, and fails for minutes after a leader has changed.
        """
        with self._lock:
            self._admin = None

    def _make(self, kind: Callable[..., C], own: Mapping[str, Any]) -> C:
        # Librdkafka's default back-offs cost half a second in init_transactions and a tenth in reading a token.
        quick = {"retry.backoff.ms": 20, "reconnect.backoff.ms": 10}
        # A bound method would make a cycle with the AdminClient, whose threads and sockets then wait for the collector.
        this = weakref.ref(self)

        def on_error(error: KafkaError) -> None:
            if (clients := this()) is not None:
                clients._on_error(error)

        config = {**quick, **self.settings.common, **own, "error_cb": on_error}
        try:
            return kind(config, logger=_librdkafka_log)
        except (KafkaException, ValueError, TypeError) as error:
            # The text may contain a value: only names are repeated, and the cause is cut off.
            named = [key for key in config if key in str(error)]
            raise SinkAccessError(
                f"librdkafka refuses the connection's settings ({', '.join(named) or type(error).__name__}).",
                code="connection_invalid",
                remedy=f"Correct the extra of connection {self.conn_id}. CONFIGURATION.md of librdkafka lists names and"
                " values.",
                participant=self.conn_id,
                settings=named,
            ) from None

    def _on_error(self, error: KafkaError) -> None:
        if is_refusal(error):
            self._access_error = error
        log.debug("connection %s: %s", self.conn_id, error)

    def error(self, error: KafkaError, doing: str) -> AirflowFtError:
        """Return our error for one of librdkafka's: SinkAccessError if a person must act, else SinkUnavailableError."""
        if self._admin is not None:
            self._admin.poll(0)  # serves the callback
        if not is_refusal(error) and self._access_error is not None:
            error = self._access_error
        what = f"{doing} failed: {error.str()} ({error.name()})."
        if is_refusal(error):
            return SinkAccessError(
                what,
                code=REFUSED[error.code()],
                remedy=REMEDIES.get(
                    error.code(), "Correct the connection, the privileges or the topic. The staged rows are kept."
                ),
                participant=self.conn_id,
                error=error.name(),
            )
        return SinkUnavailableError(
            what,
            code="server_unreachable" if error.code() in SILENT else "request_failed",
            remedy="Retry when the brokers answer. The retry reads from the token what was delivered.",
            participant=self.conn_id,
            error=error.name(),
        )
