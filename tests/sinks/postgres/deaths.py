"""Something happens to a process at one of its statements: it dies, or others act while it stands still."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_ft.sinks.postgres.session import Session


class Death(BaseException):
    """The process ends here; its sockets are closed, as they are after a kill."""


def die() -> None:
    raise Death


@dataclass
class AtStatement:
    """Calls `action` before or after the `at`-th statement (from 1), once."""

    at: int
    before: bool
    action: Callable[[], Any] = die
    count: int = 0
    struck: str = ""

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("run", "rows", "copy"):
            patch.setattr(Session, name, self._counted(getattr(Session, name)))

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(session: Session, *args: Any) -> Any:
            if self.struck:
                return method(session, *args)
            self.count += 1
            if self.count < self.at:
                return method(session, *args)
            self.struck = str(args[0])
            if self.before:
                self.action()
                return method(session, *args)
            result = method(session, *args)
            self.action()
            return result

        return call
