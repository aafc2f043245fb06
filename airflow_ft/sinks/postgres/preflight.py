"""What is demanded of a server before it is written to: that it takes writes, and does not forget them."""

from __future__ import annotations

import logging

from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.sinks.postgres.session import Session

log = logging.getLogger(__name__)


def check_server(session: Session, *, allow_unsafe_durability: bool, prepares: bool) -> list[str]:
    """SinkAccessError for a server that cannot be relied on; returns warnings. `prepares`: by PREPARE TRANSACTION."""
    if session.value("SELECT pg_is_in_recovery()"):
        raise SinkAccessError(
            "the server is a standby and takes no writes.",
            code="server_read_only",
            remedy='Point the connection at the primary, or put "target_session_attrs": "read-write" into its extra.',
        )
    if session.value("SHOW transaction_read_only") == "on":
        raise SinkAccessError(
            "default_transaction_read_only is on for the connection's user, so the server takes no writes.",
            code="server_read_only",
            remedy="Reset it where it is set (`SELECT * FROM pg_db_role_setting`, or postgresql.conf), or use another"
            " user.",
            setting="default_transaction_read_only",
        )
    if prepares and int(session.value("SHOW max_prepared_transactions")) == 0:
        raise SinkAccessError(
            "max_prepared_transactions is 0, so the server cannot prepare transactions.",
            code="limit_reached",
            remedy="Run `ALTER SYSTEM SET max_prepared_transactions = 20` and restart the server (each standby needs at"
            " least the same number), or choose strategy 'local'.",
            setting="max_prepared_transactions",
        )
    unsafe = [name for name in ("fsync", "full_page_writes") if session.value(f"SHOW {name}") != "on"]
    if not unsafe:
        return []
    text = (
        f"{' and '.join(unsafe)} of the server {'is' if len(unsafe) == 1 else 'are'} off: a crash can lose rows or"
        " markers that the server has acknowledged"
    )
    if not allow_unsafe_durability:
        raise SinkAccessError(
            f"{text}.",
            code="server_setting_unsafe",
            remedy=f"Run `{'; '.join(f'ALTER SYSTEM SET {name} = on' for name in unsafe)}; SELECT pg_reload_conf()`, or"
            " accept the loss with PostgresSink(allow_unsafe_durability=True).",
            settings=unsafe,
        )
    log.warning("%s (allowed by allow_unsafe_durability)", text)
    return [text]
