"""Where the page offers each act, and what it asks before it: whoever adds an act adds its row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from playwright.sync_api import Locator

from tests.browser.pages import Act, PipelinePage, Table

Place = Callable[[PipelinePage], Locator]


def above(pipeline: PipelinePage) -> Locator:
    """Above the tabs."""
    return pipeline.acts


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

    def of(self, pipeline: PipelinePage, **named: str) -> Act:
        """The button, and what it asks; `named` is in the title, beside the pipeline's name."""
        return Act(self.within(pipeline), self.label, self.title.format(name=pipeline.name, **named))


STREAMS = frozenset({"stop", "stop_now", "stop_with_savepoint", "drain", "drain_with_savepoint"})
"""Acts on streams, which are offered on those alone."""
BUTTONS: Mapping[str, Button] = {
    "resume": Button("Resume", above, "Let {name} go on?", "its next run goes on where it stood"),
    "recover": Button("Recover", above, "Settle what is in doubt of {name}?", "Delivers what is decided"),
    "stop": Button("Stop", above, "Stop {name}?", "It goes on when its DAG runs again."),
    "stop_now": Button("Stop now", above, "Stop {name} at once?", "What is not published is given up"),
    "drain": Button("Drain", above, "Drain {name} for good?", "a checkpoint of what is still open in windows"),
    "rewind": Button("Rewind", above, "Compute again what {name} has not delivered?", "What was delivered stays."),
    "reset_state": Button("Reset state", above, "Drop all state of {name}?", "Positions are kept"),
    "retire": Button("Retire", above, "Retire {name}?", "until the next run"),
    "verify": Button("Verify", above, "Compare {name} with its sinks?", "nothing is changed"),
    "doctor": Button("Examine", above, "Examine all that {name} needs?", "nothing that stays is written"),
    "commit": Button(
        "Deliver",
        open_checkpoint,
        "Deliver checkpoint 1 ({of})?",
        "under its marker, so no row comes twice",
    ),
    "abort": Button("Abort", open_checkpoint, "Give checkpoint 1 ({of}) up?", "Only what is not decided"),
    "quarantine": Button(
        "Quarantine", open_checkpoint, "Keep checkpoint 1 ({of}) as it is?", "Nothing later is delivered until somebody"
    ),
    "redeliver": Button(
        "Redeliver",
        open_checkpoint,
        "Deliver checkpoint 1 ({of}), also into a sink that has lost its token?",
        "Are you sure that its rows are not there?",
    ),
    "dead_letter": Button(
        "Set rows aside",
        open_checkpoint,
        "Deliver checkpoint 1 ({of}), and set refused rows aside?",
        "Rows that a sink refuses go into dead-letter files beside the log, for good.",
    ),
    "savepoint": Button("Take a savepoint", savepoints, "Take a savepoint of {name}?", "it does not notice"),
    "stop_with_savepoint": Button(
        "Stop with a savepoint", savepoints, "Stop {name}, and keep where it stands?", "a savepoint of that is taken"
    ),
    "drain_with_savepoint": Button(
        "Drain with a savepoint", savepoints, "Drain {name} for good, and keep where it stands?", "a savepoint is taken"
    ),
    "restore": Button(
        "Restore", savepoint, "Restore {name} to checkpoint 1?", "Checkpoints 2 to 2 were delivered after it."
    ),
    "dispose": Button("Delete", savepoint, "Delete {savepoint}?", "is deleted for good"),
}
