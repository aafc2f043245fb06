"""Check whether the sinks would take rows of these schemas, before Spark computes any. `prepare` judges staged rows.

The judges are the same. Nothing is written and nothing locked, and a sink that cannot be asked now is passed over: rows
may be staged while it is away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from airflow_ft.protocol.background import beside
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.warning import PipelineWarning
from airflow_ft.sinks.registry import system

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_ft.protocol.connections import ConnectionInfo, ConnectionResolver
    from airflow_ft.protocol.model import ParticipantPlan

    Fitting = Callable[[ParticipantPlan, ConnectionInfo, Mapping[str, pa.Schema]], Sequence[AirflowFtError]]

log = logging.getLogger(__name__)


def schema_problems(
    participants: Sequence[ParticipantPlan],
    connections: ConnectionResolver,
    schemas: Mapping[str, pa.Schema],
    warn: Callable[[PipelineWarning], None] = lambda warning: log.warning("%s", warning),
) -> list[AirflowFtError]:
    """Return all objections to the schemas, by sink name, from all sinks that can be asked; each with its place.

    Skips systems without `schema_problems`. `warn` receives a warning for each connection that raises
    SinkUnavailableError or SinkAccessError.
    """
    asked = []
    for plan in participants:
        wanted = {name: schemas[name] for name in plan.sinks if name in schemas}
        fitting = getattr(system(plan.kind).part("requirements"), "schema_problems", None) if wanted else None
        if fitting is not None:
            asked.append((plan, _asked(fitting, plan, connections, wanted)))
    found: list[AirflowFtError] = []
    for plan, answer in asked:
        try:
            problems = answer.result()
        except AirflowFtError as error:
            warn(not_judged(plan.name, f"connection {plan.name} cannot be asked now: {error.headline}"))
            continue
        found += [problem.located(participant=plan.name) for problem in problems]
        if not problems:
            names = ", ".join(name for name in plan.sinks if name in schemas)
            log.info("the job's columns fit connection %s (sinks: %s)", plan.name, names)
    return found


def not_judged(subject: str, reason: str) -> PipelineWarning:
    """Return the warning that a run continues without comparing the job's columns with a connection's sinks."""
    return PipelineWarning(
        code="COLUMNS_NOT_JUDGED",
        subject=subject,
        message=f"the job's columns were not compared with the sinks before rows were computed: {reason}",
        remedy="Do nothing if the run succeeds: `prepare` checks the staged rows. It finds a problem only after the"
        " rows were computed.",
    )


def _asked(
    fitting: Fitting, plan: ParticipantPlan, connections: ConnectionResolver, schemas: Mapping[str, pa.Schema]
) -> Future[Sequence[AirflowFtError]]:
    try:  # here: a task's connections are asked for by one thread at a time
        connection = system(plan.kind).connection(plan, connections)
    except AirflowFtError as error:
        refused: Future[Sequence[AirflowFtError]] = Future()
        refused.set_exception(error)
        return refused
    return beside(partial(fitting, plan, connection, schemas), f"fitting-{plan.name}")
