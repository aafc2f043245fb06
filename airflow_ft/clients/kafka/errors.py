"""Meaning of librdkafka's errors: fenced, refused until a person acts, or no answer."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError

_FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    }
)
# A retry is useless until the environment changes: the code of our error for each.
REFUSED: Mapping[int, str] = {
    KafkaError._AUTHENTICATION: "login_refused",
    KafkaError._SSL: "tls_failed",
    KafkaError._UNKNOWN_TOPIC: "topic_missing",
    KafkaError._UNKNOWN_PARTITION: "partition_missing",
    KafkaError._INVALID_ARG: "request_refused",
    KafkaError.SASL_AUTHENTICATION_FAILED: "login_refused",
    KafkaError.UNSUPPORTED_SASL_MECHANISM: "login_refused",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "privilege_missing",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "privilege_missing",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "privilege_missing",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "privilege_missing",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "topic_missing",
    KafkaError.TOPIC_EXCEPTION: "name_invalid",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "limit_reached",
    KafkaError.MSG_SIZE_TOO_LARGE: "record_too_large",
    KafkaError.INVALID_MSG_SIZE: "record_too_large",
    KafkaError.RECORD_LIST_TOO_LARGE: "record_too_large",
    KafkaError.INVALID_TIMESTAMP: "value_unfit",
    KafkaError.INVALID_RECORD: "row_refused",
    KafkaError.INVALID_REQUIRED_ACKS: "request_refused",
    KafkaError.OFFSET_METADATA_TOO_LARGE: "limit_reached",
    KafkaError.POLICY_VIOLATION: "request_refused",
    KafkaError.INVALID_REPLICATION_FACTOR: "request_refused",
    KafkaError.UNSUPPORTED_VERSION: "server_version",
    KafkaError.SECURITY_DISABLED: "request_refused",
}
REMEDIES: Mapping[int, str] = {
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "Lower transaction.timeout.ms in the connection's extra, or raise"
    " transaction.max.timeout.ms of the brokers.",
    KafkaError.MSG_SIZE_TOO_LARGE: "Raise max.message.bytes of the topic (and message.max.bytes in the extra, if set).",
    KafkaError.OFFSET_METADATA_TOO_LARGE: "Raise offset.metadata.max.bytes of the brokers to at least 4096.",
}
SILENT = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.BROKER_NOT_AVAILABLE,
    }
)


def is_fenced(error: KafkaError) -> bool:
    """Return whether another producer has initialised the same transactional id."""
    return error.code() in _FENCED


def is_refusal(error: KafkaError) -> bool:
    """Return whether a retry is useless until the environment changes."""
    return error.code() in REFUSED
