"""What is demanded of a server before it is written to: that it takes writes, and does not forget them."""

from __future__ import annotations

import logging

from airflow_ft.core.errors import SinkAccessError
from airflow_ft.sinks.postgres.session import Session

log = logging.getLogger(__name__)


def check_server(session: Session, *, allow_unsafe_durability: bool, prepares: bool) -> list[str]:
    """SinkAccessError for a server that cannot be relied on; returns warnings. `prepares`: by PREPARE TRANSACTION."""
    if session.value("SELECT pg_is_in_recovery()"):
        raise SinkAccessError(
            "the server takes no writes: it is a standby.",
            remedy="point the connection at the primary (target_session_attrs=read-write in its extra).",
        )
    if session.value("SHOW transaction_read_only") == "on":
        raise SinkAccessError(
            "the server takes no writes: default_transaction_read_only is on for this user.",
            remedy="RESET it where it is set (SELECT * FROM pg_db_role_setting; postgresql.conf); or use another user.",
        )
    if prepares and int(session.value("SHOW max_prepared_transactions")) == 0:
        raise SinkAccessError(
            "max_prepared_transactions is 0: the server has no prepared transactions.",
            remedy="ALTER SYSTEM SET max_prepared_transactions = 20, restart it (a standby needs as many);"
            " or choose strategy 'local'.",
        )
    unsafe = [name for name in ("fsync", "full_page_writes") if session.value(f"SHOW {name}") != "on"]
    if not unsafe:
        return []
    text = (
        f"{' and '.join(unsafe)} of the server {'is' if len(unsafe) == 1 else 'are'} off: after a crash it may have"
        " forgotten rows or markers that it had acknowledged"
    )
    if not allow_unsafe_durability:
        raise SinkAccessError(
            f"{text}.",
            remedy=f"{'; '.join(f'ALTER SYSTEM SET {name} = on' for name in unsafe)}, and SELECT pg_reload_conf();"
            " or accept the loss with PostgresSink(allow_unsafe_durability=True).",
        )
    log.warning("%s (allowed by allow_unsafe_durability)", text)
    return [text]
