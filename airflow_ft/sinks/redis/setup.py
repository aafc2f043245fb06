"""Set up a Redis server before the first delivery: print the rules of a user, for an administrator."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.redis.server import beginnings, rules
from airflow_ft.sinks.redis.spec import RedisSink


def describe(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Iterator[str]:
    """Commands that let the connection's user deliver and verify. Asks nothing of the server."""
    yield f"# Connection {plan.name}: run this with redis-cli, as a user with ADMIN rights."
    user = connection.login or "default"
    rights = rules(sorted(beginnings(RedisSink.all_of(plan).values())))
    if user == "default":  # Redis refuses more rules for a user that may do everything
        yield "# The connection has the user default, who may do everything unless limited. A limited user needs:"
        yield f"# ACL SETUSER <user> {rights}"
    else:
        if not user.isprintable() or any(character in user for character in " \"'"):  # it would be several words
            user = "<user>"
        yield "# If the user is new, append: on >PASSWORD"
        yield f"ACL SETUSER {user} {rights}"
    yield "CONFIG SET appendonly yes"
    yield "CONFIG SET appendfsync always"
    yield "CONFIG SET no-appendfsync-on-rewrite no"
    yield "CONFIG SET maxmemory-policy noeviction"
    yield "# If redis.conf names an aclfile, also run ACL SAVE, or the user is lost at the next start."
    yield "# Without a redis.conf, CONFIG REWRITE fails: pass these settings as arguments (--appendonly yes ...)."
    yield "CONFIG REWRITE"


def create(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> str:
    """Create nothing: the first `prepare` writes the sink's own key."""
    return ""
