"""Answers of the product and of the servers in few words, for stories."""

from __future__ import annotations

import json
from collections.abc import Sequence

from airflow_ft.protocol.model import Checkpoint, Plan
from airflow_ft.protocol.pipelines import Lease, Pipeline, Run

READS = ("store.pipeline(", "store.open_checkpoints(", "store.leases(", "store.run(", "store.register(")


def is_plain_read(what: str, answer: object) -> bool:
    """A look into the decision log that went well: a story is easier to read without it."""
    return what.startswith(READS) and not isinstance(answer, Exception)


def as_text(answer: object, most: int = 150) -> str:
    """An answer in one line."""
    text = _as_text(answer)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _as_text(answer: object) -> str:
    match answer:
        case None:
            return "ok"
        case str():
            return answer
        case Exception():
            return f"{type(answer).__name__}: {answer}"
        case Checkpoint():
            votes = ", ".join(f"{name} {vote.prepared or '-'}" for name, vote in answer.votes.items())
            return f"{answer.number} is {answer.state}" + (f" (votes: {votes})" if votes else "")
        case Pipeline():
            return f"epoch {answer.epoch}, {answer.status}, published {answer.last_published}"
        case Run():
            return f"run {answer.key.run_id}: epoch {answer.epoch}, {'staged' if answer.staged else 'not staged'}"
        case Lease():
            return f"lease of epoch {answer.epoch}"
        case Plan():
            return f"the plan of {answer.number}: segments {[segment.number for segment in answer.segments]}"
        case (int(affected), list(rows)):  # a statement
            return f"{len(rows)} rows: {rows}" if rows else f"{affected} affected"
        case (int(offset), str(metadata)) if metadata.startswith("{"):
            token = json.loads(metadata)
            return f"token {offset} ({token['kind']}, head {token['epoch']}.{token['attempt']})"
        case Sequence():
            return f"[{'; '.join(map(_as_text, answer))}]"
        case _:
            return repr(answer)
