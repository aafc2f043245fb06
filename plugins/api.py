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
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from markdown_it import MarkdownIt

from airflow_ft.admin.documentation import FOLDER, anchor, title
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError

from . import pipeline, pipelines, savepoints, state
from .refused import RefusedError

PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}
VERSION = "v1"
"""Version of the API. A change that could break programs of others raises it."""
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
"""Headers of every answer: none needs a script, a form, or anything from elsewhere. The documentation has pictures."""
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
    for kind in (AirflowFtError, OSError, ImportError, RefusedError):
        app.add_exception_handler(kind, _error_response)

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
            raise RefusedError(404, f"there is no script {script!r}.", code="path_invalid")
        # Asked for each time: the modules of two releases do not fit together.
        headers = {"Cache-Control": "no-cache"}
        return FileResponse(Path(__file__).with_name(f"{script}.js"), media_type="text/javascript", headers=headers)

    @app.get("/docs/images/{picture}", include_in_schema=False)
    def picture(picture: str) -> FileResponse:
        file = _file("picture", picture, *(f"images/*{suffix}" for suffix in PICTURES))
        return FileResponse(file, media_type=PICTURES[file.suffix])

    @app.get("/docs/observability/{name}", include_in_schema=False)
    def observability(name: str) -> FileResponse:
        return FileResponse(_file("file", name, "observability/*.*"), media_type="text/plain", filename=name)

    @app.get("/docs/{page}", include_in_schema=False)
    def documentation(page: str) -> HTMLResponse:
        return HTMLResponse(_rendered(_file("page", page, "*.md").read_text(encoding="utf-8")))

    return app


def _file(kind: str, name: str, *patterns: str) -> Path:
    """Return the file of the documentation that has the name and matches a pattern. RefusedError without one."""
    for pattern in patterns:
        for file in FOLDER.glob(pattern):
            if file.name == name:
                return file
    raise RefusedError(404, f"there is no {kind} {name!r}.", code="path_invalid")


async def _error_response(request: Request, error: Exception) -> JSONResponse:
    """Return an error as {"detail": text, "code": its code}: 400 for a bad question, 503 for what is missing now."""
    if isinstance(error, RefusedError):
        refused = error
    elif isinstance(error, AirflowFtError):
        # A package that is missing here is not the fault of the user.
        asked = isinstance(error, ConfigurationError) and not isinstance(error.__cause__, ImportError)
        refused = RefusedError.of(400 if asked else 503, error)
    elif isinstance(error, ImportError):
        refused = RefusedError(
            503,
            f"{error.name or error} is not installed on the API server.",
            code="package_missing",
            remedy="Install airflow-ft there with all extras that it needs, or use `airflow ft` where tasks run.",
        )
    else:
        refused = RefusedError(
            503,
            f"the API server cannot read a file: {error}.",
            code="storage_unavailable",
            remedy="Let the user of the API server read it, or use `airflow ft` where tasks run.",
        )
    return JSONResponse({"detail": refused.detail, "code": refused.code}, refused.status_code)


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
