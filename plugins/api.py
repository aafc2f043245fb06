"""The page's API: read-only, for users who may see plugins, and only pipelines of DAGs that they may see.

It also serves the documentation of the version that is installed, which the list of providers links to.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import closing
from html import escape
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import Depends, FastAPI, HTTPException, Query
from fastapi.responses import FileResponse, HTMLResponse
from markdown_it import MarkdownIt

from airflow_ft.core.errors import AirflowFtError
from airflow_ft.core.model import Checkpoint, PipelineStatus
from airflow_ft.core.ports import Store
from airflow_ft.core.set_aside import of_checkpoint
from airflow_ft.hooks.connections import server_connections
from airflow_ft.hooks.store import open_configured_store

DOCS = Path(__file__).parents[1] / "docs"  # in a checkout and where it is installed


def create_app() -> FastAPI:
    """The application. FastAPI applications of plugins have no authorisation of their own: every route gets it here."""
    app = FastAPI(
        title="Checkpoints",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(requires_access_view(AccessView.PLUGINS))],
    )

    @app.get("/page.js")
    def page() -> FileResponse:
        return FileResponse(Path(__file__).with_name("page.js"), media_type="text/javascript")

    @app.get("/docs/{page}")
    def documentation(page: str) -> HTMLResponse:
        file = next((file for file in DOCS.glob("*.md") if file.name == page), None)
        if file is None:
            raise HTTPException(404, f"there is no page {page!r}")
        return HTMLResponse(_rendered(file.read_text()))

    @app.get("/pipelines")
    def pipelines(user: GetUserDep, limit: Annotated[int, Query(ge=1, le=100)] = 15) -> dict[str, Any]:
        visible = get_auth_manager().get_authorized_dag_ids(user=user)
        try:
            with closing(open_configured_store(connections=server_connections)) as store:
                found = [_pipeline(store, row.name, limit) for row in store.pipelines()]
                now = store.now().isoformat()
        except AirflowFtError as error:
            raise HTTPException(503, str(error)) from error
        return {"now": now, "pipelines": [each for each in found if _is_visible(each, visible)]}

    @app.get("/pipelines/{name}/checkpoints/{number}/spec")
    def spec(name: str, number: int, user: GetUserDep) -> dict[str, Any]:
        visible = get_auth_manager().get_authorized_dag_ids(user=user)
        try:
            with closing(open_configured_store(connections=server_connections)) as store:
                checkpoint = store.checkpoint(name, number)
                if checkpoint.run is not None and checkpoint.run.dag_id not in visible:
                    raise KeyError(name)
                return dict(store.spec(checkpoint.spec))
        except KeyError as error:
            raise HTTPException(404, f"it is not known what checkpoint {number} of {name} was made with") from error
        except AirflowFtError as error:
            raise HTTPException(503, str(error)) from error

    return app


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


def _is_visible(pipeline: dict[str, Any], dag_ids: Collection[str]) -> bool:
    """Whether the user may see every DAG that has staged one of these checkpoints."""
    return all(c["dag_id"] in dag_ids for c in pipeline["checkpoints"] if c["dag_id"])


def _pipeline(store: Store, name: str, limit: int) -> dict[str, Any]:
    row = store.pipeline(name)
    latest = store.latest_confirmed(name)
    return {
        "name": name,
        "halted": f"{row.halt_reason}: {row.halt_message}" if row.status is PipelineStatus.HALTED else "",
        "confirmed": latest.number if latest else 0,
        "at_work": str(row.turn) if row.turn else "",
        "checkpoints": [_checkpoint(c) for c in store.checkpoints(name, limit)],
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
