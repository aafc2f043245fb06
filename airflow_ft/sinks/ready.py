"""Could the sinks be delivered into now? Asked before Spark is started; `prepare` judges everything again.

A quick look at the requirements of all of them, side by side: connection, server, user, settings, owner, and whether
tables and topics are there and can be written. The look leaves nothing behind. A privilege that a system cannot judge
is left to `prepare`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.background import beside
from airflow_ft.protocol.errors import AirflowFtError, SinkUnavailableError
from airflow_ft.sinks.base.requirements import lacks
from airflow_ft.sinks.registry import System, system

if TYPE_CHECKING:
    from airflow_ft.protocol.connections import ConnectionInfo, ConnectionResolver
    from airflow_ft.protocol.model import ParticipantPlan
    from airflow_ft.protocol.participant import Participant, ParticipantFactory

LOOK_SECONDS = 20.0  # that all of them have together

log = logging.getLogger(__name__)


def lacking(
    pipeline: str,
    participants: Sequence[ParticipantPlan],
    connections: ConnectionResolver,
    opener: ParticipantFactory,
    installation: str,
) -> list[AirflowFtError]:
    """All that keeps rows from being delivered, of all participants, each with its place.

    One that does not answer in time is away (SinkUnavailableError); one whose system has no requirements is not
    asked. `opener` opens a participant, whose head must be this `installation`'s.
    """
    began = time.monotonic()
    found: list[AirflowFtError] = []
    asked: list[tuple[ParticipantPlan, System, Future[Sequence[AirflowFtError]]]] = []
    for plan in participants:
        try:
            of_kind = system(plan.kind)
            part = of_kind.part("requirements")
            if not hasattr(part, "required"):
                continue
            connection = of_kind.connection(plan, connections)  # here: they are asked for by one thread at a time
            sink = opener(plan)
        except AirflowFtError as error:
            found.append(error.located(participant=plan.name))
            continue
        question = partial(_ask, part, pipeline, plan, connection, sink, installation)
        asked.append((plan, of_kind, beside(question, f"ready-{plan.name}")))
    for plan, of_kind, answer in asked:
        problems = _answered(answer, LOOK_SECONDS - (time.monotonic() - began), plan)
        found += [problem.located(participant=plan.name, unconnected=not of_kind.connects) for problem in problems]
    if not found:
        took = (time.monotonic() - began) * 1000
        log.info("the sinks are ready: %s (%.0f ms)", ", ".join(plan.name for plan, _, _ in asked), took)
    return found


def _ask(
    part: Any, pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo, sink: Participant, installation: str
) -> Sequence[AirflowFtError]:
    def owner() -> str:  # connects again, so it is asked only if no requirement names the owner
        head = sink.head(pipeline)
        return "" if head is None else head.installation

    try:
        return lacks(part.required(pipeline, plan, connection), installation, owner)
    finally:
        sink.close()


def _answered(
    answer: Future[Sequence[AirflowFtError]], seconds: float, plan: ParticipantPlan
) -> Sequence[AirflowFtError]:
    try:
        return answer.result(max(0.0, seconds))
    except AirflowFtError as error:
        return [error]
    except TimeoutError:
        return [
            SinkUnavailableError(
                f"the check of the sink took more than {LOOK_SECONDS:.0f} s: its server does not answer, or this"
                " machine is overloaded.",
                code="server_unreachable",
                remedy="Check the load of this machine, that the server runs, and that host and port of the connection"
                " are right.",
                seconds=LOOK_SECONDS,
            )
        ]
    except Exception as error:  # our own mistake, perhaps: `prepare` is what counts
        text = "connection %s could not be checked now; `prepare` checks it again: %s: %s"
        log.warning(text, plan.name, type(error).__name__, error)
        return []
