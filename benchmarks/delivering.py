"""A delivery process: what `prepare` and `commit` do with one checkpoint, without Airflow and store. See `workers`."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.workers import peak_memory, serve


def deliver(plan: Mapping[str, Any], connection: Mapping[str, Any], attempt: int = 1) -> Mapping[str, Any]:
    """Opens a participant for each of the two steps, as their tasks would; seconds from the first to the last."""
    began = time.monotonic()
    found = prepare(plan, connection, attempt)
    found |= commit(plan, connection, attempt + 1, found["notes"])
    return {**found, "seconds": time.monotonic() - began}


def deliver_from_memory(plan: Mapping[str, Any], connection: Mapping[str, Any]) -> Mapping[str, Any]:
    """As `deliver` into Kafka, of rows that are read and encoded before the clock starts."""
    from contextlib import closing
    from unittest.mock import patch

    from airflow_ft.protocol.connections import ConnectionInfo
    from airflow_ft.protocol.model import Plan
    from airflow_ft.sinks.kafka.content import PlanContent
    from airflow_ft.sinks.kafka.participant import open_participant
    from airflow_ft.wal import open_wal

    stored = Plan.from_json(plan)
    with closing(open_participant(stored.participants[0], ConnectionInfo(**connection), open_wal())) as participant:
        encoded = list(participant._content._records(stored, 0))
    with patch.object(PlanContent, "_records", lambda *_: iter(encoded)):
        return deliver(plan, connection)


def prepare(plan: Mapping[str, Any], connection: Mapping[str, Any], attempt: int = 1) -> dict[str, Any]:
    """The vote alone: {"prepare_seconds", "notes", "peak_mb"}."""
    from contextlib import closing

    from airflow_ft.protocol.connections import ConnectionInfo
    from airflow_ft.protocol.model import Fence, Plan
    from airflow_ft.sinks import open_participant
    from airflow_ft.wal import open_wal

    began = time.monotonic()
    stored, info = Plan.from_json(plan), ConnectionInfo(**connection)
    chosen = stored.participants[0]
    with closing(open_participant(chosen, lambda _: info, open_wal())) as participant:
        notes = participant.prepare(stored, Fence(stored.pipeline, stored.installation, 1, attempt))
    return {
        "prepare_seconds": time.monotonic() - began,
        "notes": json.loads(json.dumps(notes)),
        "peak_mb": peak_memory(),
    }


def commit(
    plan: Mapping[str, Any], connection: Mapping[str, Any], attempt: int, notes: Mapping[str, Any]
) -> dict[str, Any]:
    """The delivery alone: {"commit_seconds", "counts", "peak_mb"}."""
    from contextlib import closing

    from airflow_ft.protocol.connections import ConnectionInfo
    from airflow_ft.protocol.model import Fence, Plan
    from airflow_ft.protocol.participant import Participant
    from airflow_ft.protocol.votes import Vote
    from airflow_ft.sinks import open_participant
    from airflow_ft.wal import open_wal

    began = time.monotonic()
    stored, info = Plan.from_json(plan), ConnectionInfo(**connection)
    chosen = stored.participants[0]
    fence = Fence(stored.pipeline, stored.installation, 1, attempt)
    with closing(open_participant(chosen, lambda _: info, open_wal())) as participant:
        if "vote" in inspect.signature(Participant.commit).parameters:
            proof = participant.commit(stored, fence, Vote(chosen.name, 1, attempt - 1, None, notes))
        else:  # a tree from before two-phase participants, for `benchmarks.against`
            proof = participant.commit(stored, fence)
    return {
        "commit_seconds": time.monotonic() - began,
        "counts": dict(proof.counts),
        "peak_mb": peak_memory(),
    }


def shared(
    step: str,
    plan: Mapping[str, Any],
    connection: Mapping[str, Any],
    notes: Mapping[str, Any] | None = None,
    branches: Sequence[str] = (),
) -> dict[str, Any]:
    """A step of a delivery by several processes: "announce", "load" some branches one by one, or "conclude"."""
    from contextlib import closing

    from airflow_ft.protocol.connections import ConnectionInfo
    from airflow_ft.protocol.model import Fence, Plan
    from airflow_ft.protocol.participant import Branching
    from airflow_ft.sinks import open_participant
    from airflow_ft.wal import open_wal

    stored, info = Plan.from_json(plan), ConnectionInfo(**connection)
    fence = Fence(stored.pipeline, stored.installation, 1, 1)
    with closing(open_participant(stored.participants[0], lambda _: info, open_wal())) as participant:
        assert isinstance(participant, Branching)
        if step == "announce":
            found: Mapping[str, Any] | None = participant.announce(stored, fence)
            return {"notes": json.loads(json.dumps(found)), "branches": list(participant.branches(stored))}
        assert notes is not None
        if step == "conclude":
            return {"notes": json.loads(json.dumps(participant.conclude(stored, fence, notes)))}
        return {"loaded": all(participant.load(stored, fence, notes, branch) for branch in branches)}


if __name__ == "__main__":
    serve(
        {
            "deliver": deliver,
            "deliver_from_memory": deliver_from_memory,
            "prepare": prepare,
            "commit": commit,
            "shared": shared,
        }
    )
