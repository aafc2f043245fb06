"""`airflow ft sessions`: the Spark sessions that are kept on this machine, for this user."""

from __future__ import annotations

from argparse import Namespace

import pendulum

from airflow_ft.admin.commands.common import Size, command, print_table, say


@command
def sessions(args: Namespace) -> None:
    """`airflow ft sessions`: lists them; with `--end` ends those that no run is using."""
    import psutil  # type: ignore[import-untyped]

    from airflow_ft.spark.session.session_leases import kept

    rows = []
    for one in kept():
        idle = one.end() if args.end else one.is_idle()
        try:
            process = psutil.Process(one.jvm)
            memory, since = Size(process.memory_info().rss), pendulum.from_timestamp(process.create_time())
        except psutil.Error:  # it has just begun, or ended
            memory, since = Size(0), None
        state = ("stopped" if args.end else "idle") if idle else "in use"
        rows.append({"pipeline": one.pipeline, "state": state, "jvm": one.jvm, "memory": memory, "since": since})
    if rows or args.output != "table":
        print_table(rows, args.output)
    else:
        say("this user keeps no Spark session on this machine")
