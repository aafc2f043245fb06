"""`airflow_ft.deliver`: rows that this program has computed, exactly once into all sinks. Without a running Airflow."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_ft.pipeline.run import PlainRun, ending_with_the_message, spec_of
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.position import Position

if TYPE_CHECKING:
    from airflow_ft.pipeline.external import Published
    from airflow_ft.pipeline.spec import PipelineSpec

_OWN = ("turn_timeout",)


@ending_with_the_message
def deliver(
    rows: object,
    spec: PipelineSpec | None = None,
    *,
    turn_timeout: timedelta | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Deliver rows exactly once into all sinks of a pipeline, or into none.

    Args:
        rows: a DataFrame of PySpark, pandas or Polars, a table of PyArrow or DuckDB, or the path of a Parquet file or
            a folder of such files. For several sinks a dictionary by their names; or a folder that has a folder for
            each sink.
        spec: the pipeline, with a `position`.
        turn_timeout: longest wait for other runs of the pipeline, None: without end.
        arguments: instead of `spec` those of `PipelineSpec`, by name: `pipeline`, `position`, `sinks`, and others.

    `position` names the rows. Rows of a position that the pipeline has delivered are not delivered again. If the
    process dies, another call with the same position completes its work.

    Returns what `run` returns, and {"position", "checkpoint": its number, "repeated": True if an earlier call has
    published it}.

    Raises an AirflowFtError after a failure. If rows are refused, nothing of them is visible in any sink.
    """
    from airflow_ft.pipeline import external
    from airflow_ft.pipeline.connections import server_connections
    from airflow_ft.pipeline.given_rows import GivenRows

    if (arguments if spec is None else vars(spec)).get("position") is None:
        raise ConfigurationError(
            "position is missing. It identifies the rows, to deliver them once.",
            code="argument_missing",
            remedy='Give position=..., such as the day of the rows: position="2026-11-24".',
            argument="position",
        )
    declared = spec_of(spec, arguments, _OWN)
    published: list[Published] = []

    def stage(pipeline: Any, run: Any, connections: Any) -> None:
        published.append(external.stage(pipeline, run, connections, position, given.open, given.columns))

    run = PlainRun(declared, server_connections, turn_timeout=turn_timeout, stage=stage)
    position, given = Position.of(declared.position), GivenRows(rows, declared.sinks)
    result = run.deliver()
    first = published[0]
    return {**result, "position": position.value, "checkpoint": first.number, "repeated": first.is_repeated}
