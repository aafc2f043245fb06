"""Errors for damaged stored data: they name the place, and not the bytes that made no sense there."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_ft.protocol.errors import AirflowFtError

SENSELESS = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, EOFError, struct.error)
"""Errors that decoders raise for bytes that make no sense."""


@contextmanager
def understood(make_error: Callable[[str], AirflowFtError]) -> Iterator[None]:
    """Raises what `make_error` makes of the mistake, instead of one of these."""
    try:
        yield
    except AirflowFtError:
        raise
    except SENSELESS as error:
        raise make_error(repr(error)) from error
