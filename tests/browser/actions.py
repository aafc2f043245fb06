"""Where the page offers each act, and what it asks before it: whoever adds an act adds its row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from playwright.sync_api import Locator

from tests.browser.pages import ActionButton, PipelinePage, Table

Place = Callable[[PipelinePage], Locator]


def above(pipeline: PipelinePage) -> Locator:
    """Above the tabs."""
    return pipeline.actions


def open_checkpoint(pipeline: PipelinePage) -> Locator:
    """Beside the only open checkpoint."""
    return Table(pipeline.tab("Overview"), "Open checkpoints").rows


def savepoints(pipeline: PipelinePage) -> Locator:
    """Above the list of savepoints."""
    return pipeline.tab("Savepoints")


def savepoint(pipeline: PipelinePage) -> Locator:
    """Beside the newest savepoint that is whole."""
    listed = Table(pipeline.tab("Savepoints"), f"Savepoints of {pipeline.name}")
    return listed.rows.filter(has=pipeline.visit.page.get_by_role("button", name="Details of")).first


@dataclass(frozen=True)
class Button:
    """`title` is that of the question, and `says` some of its words."""

    label: str
    within: Place
    title: str
    says: str

    def of(self, pipeline: PipelinePage, **named: str) -> ActionButton:
        """The button, and what it asks; `named` is in the title, beside the pipeline's name."""
        return ActionButton(self.within(pipeline), self.label, self.title.format(name=pipeline.name, **named))


STREAMS = frozenset({"stop", "stop_now", "stop_with_savepoint", "drain", "drain_with_savepoint"})
"""Acts on streams, which are offered on those alone."""
BUTTONS: Mapping[str, Button] = {
    "resume": Button("Resume", above, "Resume: {name}?", "The next run continues from the last checkpoint."),
    "recover": Button("Recover", above, "Recover: {name}?", "Delivers what is decided"),
    "stop": Button("Stop", above, "Stop: {name}?", "The next run of its DAG continues from there."),
    "stop_now": Button("Stop now", above, "Stop now: {name}?", "Discards unpublished rows"),
    "drain": Button("Drain", above, "Drain: {name}?", "also delivers open windows"),
    "rewind": Button("Rewind", above, "Rewind: {name}?", "Delivered rows stay."),
    "reset_state": Button("Reset state", above, "Reset state: {name}?", "Keeps source positions"),
    "retire": Button("Retire", above, "Retire: {name}?", "until the next run"),
    "verify": Button("Verify", above, "Verify: {name}?", "changes nothing"),
    "doctor": Button("Examine", above, "Examine: {name}?", "changes nothing"),
    "commit": Button(
        "Deliver",
        open_checkpoint,
        "Deliver: checkpoint 1 ({of})?",
        "under its marker, so no row is duplicated",
    ),
    "abort": Button(
        "Abort", open_checkpoint, "Abort: checkpoint 1 ({of})?", "Works only before the checkpoint is decided."
    ),
    "quarantine": Button(
        "Quarantine", open_checkpoint, "Quarantine: checkpoint 1 ({of})?", "Holds it and all later checkpoints"
    ),
    "redeliver": Button(
        "Redeliver",
        open_checkpoint,
        "Redeliver: checkpoint 1 ({of})?",
        "Check first that its rows are not in the sink.",
    ),
    "dead_letter": Button(
        "Set rows aside",
        open_checkpoint,
        "Set rows aside: checkpoint 1 ({of})?",
        "Moves rows that a sink refuses into dead-letter files",
    ),
    "savepoint": Button("Take a savepoint", savepoints, "Take a savepoint: {name}?", "The pipeline keeps running."),
    "stop_with_savepoint": Button(
        "Stop with a savepoint", savepoints, "Stop with a savepoint: {name}?", "takes a savepoint of it"
    ),
    "drain_with_savepoint": Button(
        "Drain with a savepoint", savepoints, "Drain with a savepoint: {name}?", "takes a savepoint"
    ),
    "restore": Button(
        "Restore", savepoint, "Restore {name} to checkpoint 1?", "Checkpoints 2 to 2 were delivered after it."
    ),
    "dispose": Button("Delete", savepoint, "Delete {savepoint}?", "for good."),
}
