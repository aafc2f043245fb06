"""Routes whose answers carry an ETag: a client that asks again, as the page does, gets 304 while nothing has changed.

An answer must be made before it can be compared. If that is expensive, the route first names what its answer depends
on (`made_of`). While that is unchanged, the client's answer is valid, and the decision log is not queried again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import Field

from airflow_ft.store.database import LARGEST

JSON = "application/json"
Number = Annotated[int, Field(ge=0, le=LARGEST)]
"""Of a checkpoint, as a decision log can keep it."""
AT_MOST = timedelta(minutes=1)
"""How long an answer holds while no write is seen: see `airflow_ft.store.summary.NEWEST`."""


class _Holds(Exception):
    """The answer that the client has still holds; `tag` is its ETag."""

    def __init__(self, tag: str) -> None:
        super().__init__(tag)
        self.tag = tag


class _Given:
    """Answers that were given: by path, ETag and what they were made of, until when they hold."""

    def __init__(self, most: int = 1000) -> None:
        self._most = most
        self._until: OrderedDict[tuple[str, str, str], datetime] = OrderedDict()
        self._lock = threading.Lock()

    def holds(self, path: str, tag: str, state: str, now: datetime) -> bool:
        """Return whether the answer of this ETag is that of now."""
        with self._lock:
            left = self._until.get((path, tag, state), now) - now
        return timedelta(0) < left <= AT_MOST  # more: the clock was put back

    def note(self, path: str, tag: str, state: str, until: datetime) -> None:
        """Remember a given answer; the oldest ones are forgotten, and only made again."""
        with self._lock:
            self._until[path, tag, state] = until
            self._until.move_to_end((path, tag, state))
            while len(self._until) > self._most:
                self._until.popitem(last=False)


_given = _Given()


def made_of(request: Request, now: datetime, *state: str) -> None:
    """To be called by a route before its dearer questions: `state` are texts of which one is another one whenever its
    answer is another one, but for what time alone changes (`holds_until`). `now` is by the clock of that.

    Does not return, and the client gets 304, where it has the answer.
    """
    digest = sha256("\0".join(state).encode()).hexdigest()
    for tag in _known(request):
        if _given.holds(_path(request), tag, digest, now):
            raise _Holds(tag)
    request.state.made_of, request.state.until = digest, now + AT_MOST


def holds_until(request: Request, at: datetime) -> None:
    """Expire the answer at that time, whatever it was made of."""
    request.state.until = min(request.state.until, at)


class Conditional(APIRoute):
    """Its answers to GET must not name the time, which would make each of them a new one."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own, and what is said above."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                response = await handle(request)
            except _Holds as found:
                return Response(status_code=304, headers=_headers(found.tag))
            if request.method != "GET" or response.status_code != 200 or response.media_type != JSON:
                return response
            tag = f'"{sha256(response.body).hexdigest()[:32]}"'
            if digest := getattr(request.state, "made_of", ""):
                _given.note(_path(request), tag, digest, request.state.until)
            if tag in _known(request):
                return Response(status_code=304, headers=_headers(tag))
            response.headers.update(_headers(tag))
            return response

        return answer


def router() -> APIRouter:
    """One for routes of that kind."""
    return APIRouter(route_class=Conditional)


def _headers(tag: str) -> dict[str, str]:
    return {"ETag": tag, "Cache-Control": "private, no-cache"}


def _known(request: Request) -> list[str]:
    """The ETags of the answers that the client has."""
    return [each.strip().removeprefix("W/") for each in request.headers.get("If-None-Match", "").split(",")]


def _path(request: Request) -> str:
    return f"{request.url.path}?{request.url.query}"
