"""Permissions that a Kafka user needs, as commands of Kafka's own tools."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote

USER = "<user>"
"""Placeholder for the name of an unknown user."""
_DURABLE = "--partitions 3 --replication-factor 3 --config min.insync.replicas=2"


def create_topic(name: str, settings: str = _DURABLE) -> str:
    """Return the command that creates a topic, by default a replicated one."""
    return f"kafka-topics.sh --bootstrap-server <broker:9092> --create --if-not-exists --topic {quote(name)} {settings}"


@dataclass(frozen=True, slots=True)
class Grant:
    """Operations on one resource. `is_prefix`: on all whose names begin so. `use` says what they are for."""

    resource: str  # as kafka-acls.sh names its options: "topic", "group", "transactional-id", "cluster"
    name: str
    operations: tuple[str, ...]
    use: str
    is_prefix: bool = False

    def command(self, user: str = USER) -> str:
        """Return the command for the administrator of the access lists."""
        where = f"--{self.resource}" + (f" {quote(self.name)}" if self.name else "")
        pattern = " --resource-pattern-type prefixed" if self.is_prefix else ""
        operations = " ".join(f"--operation {operation}" for operation in self.operations)
        return (
            f"kafka-acls.sh --bootstrap-server <broker:9092> --add --allow-principal {quote(f'User:{user}')}"
            f" {operations} {where}{pattern}"
        )
