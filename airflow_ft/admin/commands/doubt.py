"""`airflow ft in-doubt`: list unresolved checkpoints with each sink's answer, and act on one."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from airflow_ft.admin.commands.common import actor, command, open_store, participants, print_table, say
from airflow_ft.admin.dag_runs import judged, known_to_have_ended
from airflow_ft.pipeline import settings
from airflow_ft.pipeline.actions.names import SETTLING
from airflow_ft.pipeline.actions.settling import look, settle
from airflow_ft.protocol.doubt import doubts
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import AfterAbort

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog


@command
def in_doubt(args: Namespace) -> None:
    """`airflow ft in-doubt`; with an action, also settle one checkpoint."""
    chosen = [(action, number) for action in SETTLING if (number := getattr(args, action)) is not None]
    actions = [action for action, _ in chosen]
    if len(chosen) > 1:
        options = ", ".join(f"--{action.replace('_', '-')} {number}" for action, number in chosen)
        raise ConfigurationError(
            f"{options} exclude each other.",
            code="arguments_conflict",
            remedy="Give one of them. Nothing was done.",
            actions=actions,
        )
    if args.rewind and actions != ["abort"]:
        raise ConfigurationError(
            "--rewind works with --abort only.",
            code="arguments_conflict",
            remedy="Remove --rewind. Nothing was done.",
            argument="--rewind",
        )
    if (args.sink is not None) != (actions == ["give_up"]):
        raise ConfigurationError(
            "--give-up needs --sink, and no other action has it.",
            code="arguments_conflict",
            remedy="Give both, as in `--give-up 7 --sink NAME`. Nothing was done.",
            argument="--sink",
        )
    with open_store(args) as store:
        if not chosen:
            _list(store, args)
            return
        if args.pipeline is None:
            raise ConfigurationError(
                "a checkpoint number needs the name of its pipeline.",
                code="argument_missing",
                remedy="Add --pipeline NAME.",
                argument="--pipeline",
            )
        action, number = chosen[0]
        by = actor(args, f"in-doubt --{action.replace('_', '-')} {number}")
        look(by, store, args.pipeline, number)
        after = AfterAbort.REWOUND if args.rewind else AfterAbort.CARRIED
        settle(by, store, args.pipeline, action, number, after, args.sink or "")


def _list(store: DecisionLog, args: Namespace) -> None:
    names = [args.pipeline] if args.pipeline else [row.name for row in store.pipelines()]
    overviews = [store.overview(args.pipeline)] if args.pipeline else store.overviews()
    known = judged(overviews, settings.lease_seconds(), known_to_have_ended)
    resting = {each.name for each in known if each.paused or each.retired}
    found = doubts(store, names, participants(), resting)
    if not found and args.output == "table":
        say("nothing is in doubt")
        return
    rows = [
        {
            "pipeline": doubt.pipeline,
            "checkpoint": doubt.number or None,
            "sink": doubt.participant,
            "state": doubt.state,
            "age": doubt.age,
            "finding": doubt.evidence.finding.value,
            "known": doubt.evidence.text,
            "last_error": doubt.last_error or None,
            "last_error_code": doubt.last_error_code or None,
            "next": doubt.advice,
        }
        for doubt in found
    ]
    print_table(rows, args.output)
