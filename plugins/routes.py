"""Routes whose answers carry an ETag: who asks again, as the page does, gets 304 while nothing has changed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import Field

from airflow_ft.store.database import LARGEST

JSON = "application/json"
Number = Annotated[int, Field(ge=0, le=LARGEST)]
"""Of a checkpoint, as a decision log can keep it."""


class Conditional(APIRoute):
    """Its answers to GET must not name the time, which would make each of them a new one."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own, and what is said above."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            response = await handle(request)
            if request.method != "GET" or response.status_code != 200 or response.media_type != JSON:
                return response
            tag = f'"{sha256(response.body).hexdigest()[:32]}"'
            headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
            known = [each.strip().removeprefix("W/") for each in request.headers.get("If-None-Match", "").split(",")]
            if tag in known:
                return Response(status_code=304, headers=headers)
            response.headers.update(headers)
            return response

        return answer


def router() -> APIRouter:
    """One for routes of that kind."""
    return APIRouter(route_class=Conditional)
