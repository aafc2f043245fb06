"""`raises`: asserts class, code and fields of an error, and never its words, so that words can be improved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_ft.protocol.errors import AirflowFtError


@dataclass
class Raised:
    """What was raised, once the block has ended: `value` itself, and `error`, our own error behind it."""

    value: BaseException | None = None
    error: AirflowFtError | None = None


@contextmanager
def raises(kind: type[BaseException], code: str | None = None, /, **fields: Any) -> Iterator[Raised]:
    """Assert that the block raises an error of exactly this class, code and fields.

    Args:
        kind: our class; or another package's (`AirflowFailException`, `SystemExit`) made of one of our errors.
        code: the error's stable code; None: whatever it is (only for errors of other packages).
        fields: what the error says of itself: `sink="orders"`, `column="total"`, and each of its `fields`.
    """
    raised = Raised()
    with pytest.raises(kind) as found:
        yield raised
    raised.value = found.value
    raised.error = ours(found.value)
    if code is None:
        assert not issubclass(kind, AirflowFtError), "name the code"
        return
    error = raised.error
    assert error is not None, f"no error of ours is behind {found.value!r}"
    if issubclass(kind, AirflowFtError):
        assert type(error) is kind, f"{type(error).__name__}: {error}"
    assert error.code == code, f"{error.code}: {error}"
    for name, value in fields.items():
        assert field(error, name) == value, f"{name} is {field(error, name)!r}: {error}"


def ours(error: BaseException | None) -> AirflowFtError | None:
    """Return our error: this one, or the one that it was made of."""
    while error is not None and not isinstance(error, AirflowFtError):
        error = error.__cause__ or error.__context__
    return error


def field(error: AirflowFtError, name: str) -> Any:
    """Return a field of the error; None if it has none of this name."""
    return error.fields[name] if name in error.fields else getattr(error, name, None)
