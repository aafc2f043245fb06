"""`airflow ft in-doubt`: what is not settled, what each sink says of it, and a person's decision."""

from __future__ import annotations

from argparse import Namespace

from airflow_ft.commands.common import (
    command,
    lease,
    open_store,
    participants,
    print_table,
    rows_text,
    say,
    signature,
    state_text,
    sure,
    worker,
)
from airflow_ft.core.doubt import doubts
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.lookup import checkpoint_of
from airflow_ft.core.model import AfterAbort
from airflow_ft.core.ports import Store
from airflow_ft.core.resolution import Resolver
from airflow_ft.core.set_aside import of_checkpoint

ACTS = {
    "commit": "Deliver it under its marker",
    "abort": "Give it up",
    "quarantine": "Keep it as it is, and deliver nothing later until you take it back",
    "redeliver": "Deliver it, also into a sink that has lost its token: are you sure that its rows are not there",
    "dead_letter": "Deliver it, and set aside for good the rows that a sink refuses",
}


@command
def in_doubt(args: Namespace) -> None:
    """`airflow ft in-doubt`, and with an act: on one checkpoint."""
    chosen = [(act, number) for act in ACTS if (number := getattr(args, act)) is not None]
    with open_store(args) as store:
        if not chosen:
            _list(store, args)
            return
        if args.pipeline is None:
            raise ConfigurationError(
                "no pipeline is named.", remedy="say --pipeline NAME with the checkpoint's number."
            )
        _act(store, args, *chosen[0])


def _list(store: Store, args: Namespace) -> None:
    names = [args.pipeline] if args.pipeline else [row.name for row in store.pipelines()]
    found = doubts(store, names, participants())
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
            "next": doubt.advice,
        }
        for doubt in found
    ]
    print_table(rows, args.output)


def _act(store: Store, args: Namespace, act: str, number: int) -> None:
    found = checkpoint_of(store, args.pipeline, number)
    for doubt in doubts(store, [args.pipeline], participants()):
        if doubt.number in (number, 0):
            say(f"{doubt.participant or doubt.pipeline}: {doubt.evidence.text}")
    after = AfterAbort.REWOUND if args.rewind else AfterAbort.CARRIED
    fate = f", its rows are {after}" if act == "abort" else ""
    sure(args, f"Checkpoint {number} ({state_text(found)}, {rows_text(found)} rows): {ACTS[act]}{fate}?")
    who = signature(args, f"in-doubt --{act.replace('_', '-')} {number}")
    resolver = Resolver(store, args.pipeline, participants(), who, worker(), lease())
    match act:
        case "commit":
            found = resolver.commit(number)
        case "abort":
            found = resolver.abort(number, after)
        case "quarantine":
            found = resolver.quarantine(number)
        case "dead_letter":
            found = resolver.dead_letter(number)
        case _:
            found = resolver.redeliver(number)
    say(f"checkpoint {number} is {state_text(found)}")
    for sink, aside in of_checkpoint(found).items():
        say(aside.text(sink))
