"""Makes Airflow's database, with its teams and DAGs: `python -m tests.browser.prepare TEAM...`

Each `airflow` command imports Airflow for seconds, so these run in one process.
"""

from __future__ import annotations

import sys


def main(*teams: str) -> None:
    from airflow.cli import cli_parser

    parser = cli_parser.get_parser()
    for command in (["db", "migrate"], *(["teams", "create", team] for team in teams), ["dags", "reserialize"]):
        arguments = parser.parse_args(command)
        arguments.func(arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
