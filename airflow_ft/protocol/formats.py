"""Stored data that this release cannot read: of a later format, or damaged.

Plans, tokens, manifests and savepoints may outlive the release that wrote them. A later release reads what an earlier
one wrote. An earlier release refuses an unknown format by name before it touches anything. Data without a format number
has the first format. The ledger tables of a sink have no number: the decision log that owns them has a version, and a
release that does not know it reaches no sink.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TypeVar

from airflow_ft.protocol.errors import AirflowFtError, NewerReleaseError

E = TypeVar("E", bound=StrEnum)
_WORD = re.compile(r"[A-Za-z]+([_-][A-Za-z]+)*")


def refuse_newer(what: str, found: object, known: int) -> None:
    """NewerReleaseError when `what` is of a later format than this release knows."""
    if isinstance(found, int) and found > known:
        raise NewerReleaseError(f"{what} is of format {found}, and this airflow-ft knows formats up to {known}.")


def is_word(text: object) -> bool:
    """Return whether it may be a member of a closed list, in a release that has more of them."""
    return isinstance(text, str) and _WORD.fullmatch(text) is not None


def member(kind: type[E], text: str, of: str) -> E:
    """The member of a closed list, of which `of` says whose it is. NewerReleaseError for a word that is none,
    ValueError for what is no word.
    """
    try:
        return kind(text)
    except ValueError:
        if not is_word(text):
            raise
    raise NewerReleaseError(f"{of} is {text}, which this airflow-ft does not know: a newer one has written it.")


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
