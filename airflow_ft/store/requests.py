"""Requests of people to a running pipeline. A stream reads them, acts, and answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ft.protocol.pipelines import Request, RequestKind
from airflow_ft.store.database import Database, Row
from airflow_ft.store.errors import UnknownPipelineError
from airflow_ft.store.events import EventKind
from airflow_ft.store.rows import clean_text, json_object, json_text, shown_text, stored, to_time
from airflow_ft.store.writing import pipeline_write


class RequestOperations:
    """The part of the store that holds requests."""

    _database: Database

    def ask(self, pipeline: str, kind: RequestKind, arguments: Mapping[str, Any], by: str) -> int:
        """Store a request (plain JSON, no secret) for the process that runs the pipeline; returns its id."""
        with pipeline_write(self._database, pipeline) as write:
            [newest] = write.rows("SELECT max(id) AS id FROM request WHERE pipeline = ?", pipeline)
            number: int = (newest["id"] or 0) + 1
            write.change(
                "INSERT INTO request (pipeline, id, kind, arguments, asked_by, asked_at) VALUES (?, ?, ?, ?, ?, ?)",
                pipeline,
                number,
                kind.value,
                json_text(dict(arguments)),
                clean_text(by),
                write.now,
            )
            write.event(EventKind.REQUESTED, f"{kind.value} {_shown(arguments)}by {by}", detail={"id": number})
            return number

    def open_requests(self, pipeline: str) -> Sequence[Request]:
        """Return the unanswered requests, ascending."""
        rows = self._database.read("SELECT * FROM request WHERE pipeline = ? AND outcome IS NULL ORDER BY id", pipeline)
        return [_request(row) for row in rows]

    def requests_by(self, pipeline: str, by: str) -> Sequence[Request]:
        """Return the requests of one requester, newest first."""
        rows = self._database.read(
            "SELECT * FROM request WHERE pipeline = ? AND asked_by = ? ORDER BY id DESC", pipeline, clean_text(by)
        )
        return [_request(row) for row in rows]

    def request(self, pipeline: str, id: int) -> Request:
        """Return one request; UnknownPipelineError when there is none."""
        rows = self._database.read("SELECT * FROM request WHERE pipeline = ? AND id = ?", pipeline, id)
        if not rows:
            raise UnknownPipelineError(pipeline)
        return _request(rows[0])

    def answer(
        self, pipeline: str, id: int, outcome: str, *, missing: Sequence[str] = (), epoch: int | None = None
    ) -> None:
        """Answer a request; the first answer counts. With `epoch` only while no newer one was taken (I5).

        `missing`: arguments of the request that were not fulfilled.
        """
        with pipeline_write(self._database, pipeline) as write:
            if epoch is not None:
                write.require_epoch(epoch)
            changed = write.change(
                "UPDATE request SET outcome = ?, missing = ?, answered_at = ?"
                " WHERE pipeline = ? AND id = ? AND outcome IS NULL",
                shown_text(outcome),
                json_text(list(missing)),
                write.now,
                pipeline,
                id,
            )
            if changed:
                write.event(EventKind.ANSWERED, f"request {id}: {outcome}", detail={"id": id})


def _shown(arguments: Mapping[str, Any]) -> str:
    return f"{json_text(dict(arguments))} " if arguments else ""


@stored("request")
def _request(row: Row) -> Request:
    return Request(
        pipeline=row["pipeline"],
        id=row["id"],
        kind=RequestKind(row["kind"]) if row["kind"] in RequestKind.__members__ else row["kind"],
        arguments=json_object(row["arguments"]),
        asked_by=row["asked_by"],
        asked_at=to_time(row["asked_at"]),
        answered_at=None if row["answered_at"] is None else to_time(row["answered_at"]),
        outcome=row["outcome"] or "",
        missing=tuple(json.loads(row["missing"] or "[]")),
    )
