"""The page's API: read-only, for users who may see plugins, and only pipelines of DAGs that they may see.

It also serves the documentation of the version that is installed, which the list of providers links to.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from markdown_it import MarkdownIt

from airflow_ft.core.errors import AirflowFtError, ConfigurationError
from airflow_ft.core.model import Checkpoint, PipelineStatus
from airflow_ft.core.ports import Store
from airflow_ft.core.set_aside import of_checkpoint

from . import savepoints, state
from .access import NEWEST, configured, dags_of, decision_log, seen, visible_dags

DOCS = Path(__file__).parents[1] / "docs"  # in a checkout and where it is installed
SCRIPTS = frozenset(path.stem for path in Path(__file__).parent.glob("*.js"))


def create_app() -> FastAPI:
    """The application. FastAPI applications of plugins have no authorisation of their own: every route gets it here."""
    app = FastAPI(
        title="Checkpoints",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_access_view(AccessView.PLUGINS))],
    )
    app.include_router(savepoints.router)
    app.include_router(state.router)
    for kind in (AirflowFtError, OSError, ImportError):
        app.add_exception_handler(kind, _told)

    @app.get("/{script}.js")
    def script(script: str) -> FileResponse:
        if script not in SCRIPTS:
            raise HTTPException(404, f"there is no script {script!r}")
        return FileResponse(Path(__file__).with_name(f"{script}.js"), media_type="text/javascript")

    @app.get("/docs/{page}")
    def documentation(page: str) -> HTMLResponse:
        file = next((file for file in DOCS.glob("*.md") if file.name == page), None)
        if file is None:
            raise HTTPException(404, f"there is no page {page!r}")
        return HTMLResponse(_rendered(file.read_text()))

    @app.get("/pipelines")
    def pipelines(user: GetUserDep, limit: Annotated[int, Query(ge=1, le=100)] = NEWEST) -> dict[str, Any]:
        visible = visible_dags(user)
        with decision_log() as store, configured():
            found = [_pipeline(store, row.name, limit, visible) for row in store.pipelines()]
            return {"now": store.now().isoformat(), "pipelines": [each for each in found if each is not None]}

    @app.get("/pipelines/{name}/checkpoints/{number}/spec")
    def spec(name: str, number: int, user: GetUserDep) -> dict[str, Any]:
        with seen(name, user) as (store, _), configured():
            try:
                checkpoint = store.checkpoint(name, number)
                if checkpoint.run is not None and checkpoint.run.dag_id not in visible_dags(user):
                    raise KeyError(name)
                return dict(store.spec(checkpoint.spec))
            except KeyError as error:
                raise HTTPException(404, f"it is not known what checkpoint {number} of {name} was made with") from error

    return app


async def _told(request: Request, error: Exception) -> JSONResponse:
    """An error as one sentence: 400 for a question that cannot be answered, 503 for what is not there just now."""
    if isinstance(error, AirflowFtError):
        # A package that is missing here is no mistake of whoever asks.
        asked = isinstance(error, ConfigurationError) and not isinstance(error.__cause__, ImportError)
        return JSONResponse({"detail": str(error)}, 400 if asked else 503)
    if isinstance(error, ImportError):
        text = f"{error.name or error} is not installed. Remedy: install airflow-ft there with all that it needs"
    else:
        text = f"{error}. Remedy: let the user of the API server read it"
    return JSONResponse({"detail": f"on the API server: {text}, or use `airflow ft` where tasks run."}, 503)


def _rendered(text: str) -> str:
    """A page of the documentation; what it links to outside of docs/ is not installed."""
    here = re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", text)
    title = text.partition("\n")[0].lstrip("# ")
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(here)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        "<style>body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}pre{overflow:auto}"
        "table{border-collapse:collapse}td,th{border:1px solid #bbb;padding:.3rem .6rem;text-align:left;"
        f"vertical-align:top}}</style><body>{body}</body></html>"
    )


def _pipeline(store: Store, name: str, limit: int, visible: frozenset[str]) -> dict[str, Any] | None:
    """None: of a DAG that the user may not see."""
    newest = store.checkpoints(name, max(limit, NEWEST))
    if not dags_of(newest[:NEWEST]) <= visible:
        return None
    row = store.pipeline(name)
    latest = store.latest_confirmed(name)
    return {
        "name": name,
        "halted": f"{row.halt_reason}: {row.halt_message}" if row.status is PipelineStatus.HALTED else "",
        "confirmed": latest.number if latest else 0,
        "at_work": str(row.turn) if row.turn else "",
        "doing": [lease.doing for lease in store.leases(name) if lease.doing] if row.turn else [],
        "checkpoints": [_checkpoint(c) for c in newest[:limit]],
    }


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    plan = checkpoint.plan
    at = checkpoint.completed_at or checkpoint.decided_at or checkpoint.prepared_at or checkpoint.staged_at
    return {
        "number": checkpoint.number,
        "state": checkpoint.state.value,
        "delivered_by": checkpoint.delivered_by or checkpoint.subsumed_by or 0,
        "dag_id": checkpoint.run.dag_id if checkpoint.run else "",
        "run_id": checkpoint.run.run_id if checkpoint.run else "",
        "map_index": checkpoint.run.map_index if checkpoint.run else -1,
        "rows": dict(checkpoint.segment.rows) if checkpoint.segment else {},
        "at": (at or checkpoint.triggered_at).isoformat(),
        "message": " ".join(
            text
            for text in (
                checkpoint.message,
                *(f"{aside.text(sink)}." for sink, aside in of_checkpoint(checkpoint).items()),
            )
            if text
        ),
        "reason": checkpoint.reason.value if checkpoint.reason else "",
        "cause": checkpoint.reason.cause if checkpoint.reason else "",
        "fate": checkpoint.reason.rows if checkpoint.reason else "",
        "remedy": checkpoint.reason.remedy if checkpoint.reason else "",
        "delivers": [segment.number for segment in plan.segments] if plan else [],
        "reasons": list(plan.reasons) if plan else [],
        "spec": checkpoint.spec,
        "participants": [
            {
                "name": participant.name,
                "kind": participant.kind,
                "strategy": participant.strategy,
                "sinks": sorted(participant.sinks),
                "proof": (vote := checkpoint.votes.get(participant.name)) is not None and vote.proof is not None,
            }
            for participant in (plan.participants if plan else ())
        ],
    }
