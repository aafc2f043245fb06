"""`airflow ft setup`: create what the sinks need before the first delivery, or print the statements."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_ft.admin.commands.common import command, open_store, print_table, say
from airflow_ft.admin.commands.doctor import from_dag, spec_from_dag
from airflow_ft.pipeline.connections import server_connections
from airflow_ft.pipeline.dry_run import columns_of
from airflow_ft.pipeline.resolved import resolve
from airflow_ft.protocol.adoption import declared_sinks
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sinks.proposals import proposed
from airflow_ft.sinks.registry import system
from airflow_ft.sources.setup import describe, missing_topics

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_ft.protocol.decision_log import QueryLog
    from airflow_ft.protocol.model import ParticipantPlan
    from airflow_ft.sources import Source


@command
def setup(args: Namespace) -> None:
    """`airflow ft setup PIPELINE [--dag FILE] [--print] [--tables]`: makes what is lacking, or prints how.

    It may be repeated.
    """
    participants, sources = _declared(args)
    as_data = args.output in ("json", "yaml")
    lacking = _unreadable(args, sources) if args.tables else []
    proposing = [plan for plan in participants.values() if system(plan.kind).part("proposal") is not None]
    columns = _columns(args, announced=not as_data) if args.tables and proposing and not lacking else {}
    if args.tables and not proposing and not as_data:
        say("-- --tables: no sink of the pipeline has a table that is proposed from columns, so Spark is not started.")
    rows: list[dict[str, Any]] = []
    for name, lines in _of_sources(sources, lacking) if args.print else ():
        rows.append({"participant": f"source {name}", "made": None, "note": None, "statements": lines})
        for line in ("", *lines, "") if not as_data else ():
            say(line)
    for plan in participants.values():
        of_kind = system(plan.kind)
        called = of_kind.called(plan)
        lines = proposed(plan, server_connections, columns)
        row: dict[str, Any] = {"participant": called, "made": None, "note": None}
        module = of_kind.part("setup")
        if module is None:
            row["note"] = "nothing to do: the first prepare creates what it needs"
            report = [*lines, f"{'-- ' * args.print}{called}: {row['note']}"]
        elif args.print and not hasattr(module, "describe"):
            row["note"] = "its sink cannot print what it creates"
            report = [*lines, f"-- {called}: {row['note']}"]
        elif args.print:
            lines += module.describe(args.pipeline, plan, of_kind.connection(plan, server_connections))
            report = [*lines, ""]
        else:
            made = module.create(args.pipeline, plan, of_kind.connection(plan, server_connections))
            row["made"] = made or None
            report = [f"{called}: {f'{made} created' if made else 'nothing is missing'}"]
        rows.append(row | {"statements": lines})
        for line in report if not as_data else ():
            say(line)
    if as_data:
        print_table(rows, args.output)
    if lacking:  # not all that was asked for is printed
        raise SystemExit(1)


def _of_sources(
    sources: Mapping[str, Source], lacking: Sequence[tuple[str, str, str]]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each source that needs something, and the lines for it."""
    for name, source in sources.items():
        lines = [f"# source {name}: run this as a user who may create topics and manage access lists."]
        for topic, creation in (each for of, *each in lacking if of == name):
            lines.append(f"# Topic {topic!r} does not exist, or this user may not see it. Create it:")
            lines.append(creation)
            lines.append("# Then run this command again: without the topic the columns of the job are not known.")
        lines += describe(source, server_connections)
        if len(lines) > 1:
            yield name, lines


def _unreadable(args: Namespace, sources: Mapping[str, Source]) -> list[tuple[str, str, str]]:
    """Return each topic without which the job cannot be tried: source, name, and the command that creates it."""
    if args.dag is None or not args.print:
        raise ConfigurationError(
            "--tables needs the DAG file of the pipeline, and only prints.",
            code="argument_missing",
            remedy="Add --dag FILE --print.",
            argument="--dag" if args.dag is None else "--print",
        )
    return list(missing_topics(sources, server_connections))


def _columns(args: Namespace, *, announced: bool) -> Mapping[str, pa.Schema]:
    """By sink, as the job in the DAG has them; Spark is started for that."""
    spec = spec_from_dag(args.pipeline, args.dag)
    found = columns_of(resolve(spec), server_connections)
    for name in sorted(spec.sinks.keys() - found.keys()) if announced else ():
        say(f"-- sink {name}: its columns depend on rows; `airflow ft dry-run` shows them")
    return found


def _known(store: QueryLog, pipeline: str) -> Mapping[str, ParticipantPlan]:
    try:
        return declared_sinks(store, pipeline)
    except ConfigurationError as error:
        if error.code == "sinks_unknown":
            error.remedy = (
                "Add --dag FILE. Without a DAG, run the script of the pipeline: the decision log then names the sinks,"
                " even if the run fails."
            )
        raise error.filled(pipeline) from None


def _declared(args: Namespace) -> tuple[Mapping[str, ParticipantPlan], Mapping[str, Source]]:
    """Return the sinks, and the sources, which only a DAG knows."""
    if args.dag is None:
        with open_store(args) as store:
            return _known(store, args.pipeline), {}
    patient = from_dag(args.pipeline, args.dag)
    if left_out := [f"{part} ({why})" for part, why in patient.left_out.items() if part.startswith("sink ")]:
        raise ConfigurationError(
            f"only a run knows the value of {'; '.join(left_out)}.",
            code="template_unresolved",
            remedy="Give the params of the DAG default values.",
            parts=left_out,
        )
    found = patient.participants
    if not found:
        raise ConfigurationError(
            "the DAG has no task that prepares the pipeline's sinks, so they are not known.",
            code="pipeline_not_declared",
            remedy="Name the file that declares its sinks.",
            path=args.dag,
            pipeline=args.pipeline,
        )
    return found, patient.sources
