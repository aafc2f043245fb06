"""Commands on barriers, which several pipelines have in common."""

from __future__ import annotations

from argparse import Namespace

from airflow_ft.admin.commands.common import command, open_store, person, print_table
from airflow_ft.pipeline.barriers import check_pipelines, gate_status
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.lookup import require_known


@command
def inject_barrier(args: Namespace) -> None:
    """`airflow ft inject-barrier ID PIPELINE...`."""
    check_pipelines(args.pipelines)
    with open_store(args) as store:
        for name in args.pipelines:
            require_known(store, name, " For another decision log, add --store. Nothing was injected.")
        found = store.inject(args.barrier, args.pipelines, f"`airflow ft inject-barrier` by {person()}")
        print_table([{"pipeline": each.pipeline, "injected": each.injected_at} for each in found], args.output)


@command
def barriers(args: Namespace) -> None:
    """`airflow ft barriers [ID]`."""
    with open_store(args) as store:
        if args.barrier is None:
            rows = [
                {"barrier": each.id, "pipeline": each.pipeline, "injected": each.injected_at, "by": each.injected_by}
                for each in store.barriers(args.limit)
            ]
            print_table(rows, args.output)
            return
        injected = store.barrier(args.barrier)
        if not injected:
            raise ConfigurationError(
                f"there is no barrier {args.barrier!r}.",
                code="barrier_unknown",
                remedy="List all barriers: `airflow ft barriers`.",
                barrier=args.barrier,
            )
        rows = []
        for each in injected:
            found = gate_status(store, each.pipeline, each.injected_at)
            rows.append(
                {
                    "pipeline": each.pipeline,
                    "injected": each.injected_at,
                    "by": each.injected_by,
                    "covered": found.covered,
                    "number": found.number,
                    "as_of": found.as_of,
                }
            )
        print_table(rows, args.output)
