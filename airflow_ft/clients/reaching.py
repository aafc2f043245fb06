"""Whether a server accepts connections."""

from __future__ import annotations

import socket


def refusal(host: str, port: int, seconds: float) -> str | None:
    """Return why a server accepts no connection within this time; None: it does."""
    try:
        socket.create_connection((host, port), seconds).close()
    except (OSError, OverflowError, UnicodeError) as error:
        return f"{host}:{port}: {getattr(error, 'strerror', None) or error}"
    return None
