"""A Kafka broker that asks who one is: SASL/PLAIN beside the listener of the tests, and access lists for everybody."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from airflow_ft.sinks.kafka.permissions import Grant
from tools.servers import Kafka
from tools.servers.base import Options
from tools.servers.processes import free_port

USER, PASSWORD = "ada", "planted-Secret-2"
_WHO = f"User:{USER}"
_ANY: Any = None
_RESOURCES = {
    "any": ResourceType.ANY,
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,
}
_PATTERNS = {
    "any": ResourcePatternType.ANY,
    "literal": ResourcePatternType.LITERAL,
    "prefixed": ResourcePatternType.PREFIXED,
}
_OPERATIONS = {
    "any": AclOperation.ANY,
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}
_KINDS = {"any": AclPermissionType.ANY, "allow": AclPermissionType.ALLOW}


class GuardedKafka(Kafka):
    """`bootstrap` is for the tests, who may everything; `USER` comes by `guarded` and may what `allow` says."""

    name = "guarded-kafka"

    def __init__(self, folder: Path, port: int | None = None, options: Options | None = None) -> None:
        super().__init__(folder, port, options)
        self._guarded_port = free_port()

    @property
    def guarded(self) -> str:
        return f"{self.host}:{self._guarded_port}"

    def _properties(self, data: Path) -> dict[str, str | int]:
        properties = super()._properties(data)
        listener = f",GUARDED://{self.guarded}"
        return properties | {
            "listeners": f"{properties['listeners']}{listener}",
            "advertised.listeners": f"{properties['advertised.listeners']}{listener}",
            "listener.security.protocol.map": f"{properties['listener.security.protocol.map']},GUARDED:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.guarded.plain.sasl.jaas.config": (
                f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def allow(self, *grants: Grant) -> None:
        """Just these."""
        admin = self.admin()
        old = AclBindingFilter(_RESOURCES["any"], _ANY, _PATTERNS["any"], _WHO, _ANY, _OPERATIONS["any"], _KINDS["any"])
        admin.delete_acls([old])[old].result(30)
        bindings = [
            AclBinding(
                _RESOURCES[grant.resource],
                grant.name or "kafka-cluster",
                _PATTERNS["prefixed" if grant.is_prefix else "literal"],
                _WHO,
                "*",
                _OPERATIONS[operation],
                _KINDS["allow"],
            )
            for grant in grants
            for operation in grant.operations
        ]
        for future in admin.create_acls(bindings).values() if bindings else ():
            future.result(30)
        everything = AclBindingFilter(
            _RESOURCES["any"], _ANY, _PATTERNS["any"], _WHO, _ANY, _OPERATIONS["any"], _KINDS["any"]
        )
        deadline = time.monotonic() + 30  # the controller answers, a moment before the broker knows
        while len(admin.describe_acls(everything).result(30)) != len(set(bindings)):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    @property
    def extra(self) -> Mapping[str, Any]:
        """What `USER` has in a connection."""
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "airflow_ft_timeout": 10,
        }
