"""The page's API: read-only, for users who may see plugins, and only pipelines of DAGs that they may see.

It also serves the documentation of the version that is installed, which the list of providers links to.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Awaitable, Callable
from hashlib import sha256
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from markdown_it import MarkdownIt

from airflow_ft.core.errors import AirflowFtError, ConfigurationError
from airflow_ft.documentation import FOLDER, anchor, title

from . import pipeline, pipelines, savepoints, state

PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}
VERSION = "v1"
"""Of the API: a change that others' programs could stumble over makes another one."""
STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}pre{overflow:auto}"
    "img{max-width:100%;border:1px solid #bbb}"
    "table{border-collapse:collapse}td,th{border:1px solid #bbb;padding:.3rem .6rem;text-align:left;vertical-align:top}"
    ".right{text-align:right}.center{text-align:center}"
)
"""Of the documentation."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'self'; base-uri 'none'; form-action 'none';"
    f" img-src 'self'; style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'",
    "X-Content-Type-Options": "nosniff",
}
"""Of every answer: none needs a script, a form, or anything from elsewhere; the documentation has pictures."""
SCRIPTS = frozenset(path.stem for path in Path(__file__).parent.glob("*.js"))


def create_app() -> FastAPI:
    """The application. FastAPI applications of plugins have no authorisation of their own: every route gets it here."""
    app = FastAPI(
        title="Checkpoints",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_access_view(AccessView.PLUGINS))],
    )
    for part in (pipelines, pipeline, savepoints, state):
        app.include_router(part.router, prefix=f"/{VERSION}")
    for kind in (AirflowFtError, OSError, ImportError):
        app.add_exception_handler(kind, _told)

    @app.middleware("http")
    async def harmless(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await call_next(request)
        response.headers.update(HEADERS)
        return response

    @app.get(f"/{VERSION}/openapi.json")
    def openapi() -> dict[str, Any]:
        """The API's own description (OpenAPI), for those who write programs that ask it."""
        return app.openapi()

    @app.get("/{script}.js", include_in_schema=False)
    def script(script: str) -> FileResponse:
        if script not in SCRIPTS:
            raise HTTPException(404, f"there is no script {script!r}")
        # Asked for each time: the modules of two releases do not fit together.
        headers = {"Cache-Control": "no-cache"}
        return FileResponse(Path(__file__).with_name(f"{script}.js"), media_type="text/javascript", headers=headers)

    @app.get("/docs/images/{picture}", include_in_schema=False)
    def picture(picture: str) -> FileResponse:
        file = next((file for file in FOLDER.glob("images/*") if file.name == picture), None)
        if file is None or file.suffix not in PICTURES:
            raise HTTPException(404, f"there is no picture {picture!r}")
        return FileResponse(file, media_type=PICTURES[file.suffix])

    @app.get("/docs/observability/{name}", include_in_schema=False)
    def observability(name: str) -> FileResponse:
        file = next((file for file in FOLDER.glob("observability/*.*") if file.name == name), None)
        if file is None:
            raise HTTPException(404, f"there is no file {name!r}")
        return FileResponse(file, media_type="text/plain", filename=name)

    @app.get("/docs/{page}", include_in_schema=False)
    def documentation(page: str) -> HTMLResponse:
        file = next((file for file in FOLDER.glob("*.md") if file.name == page), None)
        if file is None:
            raise HTTPException(404, f"there is no page {page!r}")
        return HTMLResponse(_rendered(file.read_text()))

    return app


async def _told(request: Request, error: Exception) -> JSONResponse:
    """An error as one sentence: 400 for a question that cannot be answered, 503 for what is not there just now."""
    if isinstance(error, AirflowFtError):
        # A package that is missing here is no mistake of whoever asks.
        asked = isinstance(error, ConfigurationError) and not isinstance(error.__cause__, ImportError)
        return JSONResponse({"detail": str(error)}, 400 if asked else 503)
    if isinstance(error, ImportError):
        text = f"{error.name or error} is not installed.\nFix: install airflow-ft there with all that it needs"
    else:
        text = f"{error}.\nFix: let the user of the API server read it"
    return JSONResponse({"detail": f"on the API server: {text}, or use `airflow ft` where tasks run."}, 503)


def _rendered(text: str) -> str:
    """A page of the documentation; what it links to outside of docs/ is not installed."""
    here = re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", text)
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(here)
    for token, heading in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor("".join(part.content for part in heading.children or ())))
    body = markdown.renderer.render(tokens, markdown.options, {})
    body = re.sub(r' style="text-align:(\w+)"', r' class="\1"', body)  # the policy keeps styles out of tags
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title(text))}</title>'
        f"<style>{STYLE}</style><body>{body}</body></html>"
    )
