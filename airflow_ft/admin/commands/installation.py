"""Commands about this installation: its documentation, its sinks, and the Spark sessions that it keeps."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

import pendulum
from airflow.configuration import conf

from airflow_ft.admin import documentation
from airflow_ft.admin.commands.common import Size, command, print_table, say
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sinks.registry import systems
from airflow_ft.store.events import bytes_text


@command
def docs(args: Namespace) -> None:
    """`airflow ft docs [PAGE]`."""
    if args.page is not None and args.search is not None:
        raise ConfigurationError(
            "PAGE and --search exclude each other.", code="arguments_conflict", remedy="Remove PAGE or --search."
        )
    if args.page is not None:
        _print(documentation.page(args.page))
    elif args.search is not None:
        _found(args)
    else:
        titles = {
            name: documentation.title(file.read_text(encoding="utf-8")) for name, file in documentation.pages().items()
        }
        print_table([{"page": name, "about": title} for name, title in titles.items()], args.output)


def _found(args: Namespace) -> None:
    sections = documentation.search(args.search)
    if not sections and args.output in ("table", "plain"):
        say(f"No page contains {args.search!r}.")
        return
    print_table(
        [{"page": each.page, "heading": each.heading, "address": _address(each)} for each in sections], args.output
    )


def _address(section: documentation.Section) -> str | None:
    """Return where Airflow's UI has it; of the reference it has nothing."""
    served = conf.get("api", "base_url", fallback="", suppress_warnings=True)
    if not served or "/" in section.page:
        return None
    return f"{served.rstrip('/')}/airflow-ft/docs/{section.page}.md#{section.anchor}"


def _print(text: str) -> None:
    """Rendered for a terminal; as it is for a file or a pipe."""
    if not sys.stdout.isatty():
        say(text.rstrip("\n"))
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text, hyperlinks=False))


@command
def sinks(args: Namespace) -> None:
    """`airflow ft sinks`."""
    rows: list[dict[str, Any]] = []
    for system in systems():
        lacks = f"pip install {system.installed_by()}" if system.missing_clients() else "yes"
        for name, strategy in system.strategies.items():
            rows.append(
                {
                    "kind": system.kind,
                    "strategy": name,
                    "promise": strategy.promise,
                    "rows_enter": strategy.enters,
                    "visible": strategy.visible,
                    "installed": lacks,
                }
            )
    print_table(rows, args.output)


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


@command
def yarn_archive(args: Namespace) -> None:
    """`airflow ft yarn-archive --to FOLDER`: prints the setting that names the archive."""
    from airflow_ft.spark.session.home import spark_home
    from airflow_ft.spark.session.yarn_archive import ARCHIVE, upload

    made = upload(spark_home(), args.to)
    row = {"archive": made.uri, "jars": made.jars, "size": Size(made.bytes), "uploaded": made.uploaded}
    if args.output in ("json", "yaml"):
        print_table([row], args.output)
        return
    done = "uploaded" if made.uploaded else "already there"
    say(f"{made.uri}: {done}, {count_text(made.jars, 'jar')}, {bytes_text(made.bytes)}")
    say(f'set spark_conf={{"{ARCHIVE}": "{made.uri}"}} on the pipelines, or in [airflow_ft] spark_conf')
