"""The base class of all errors, and functions for all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from shlex import quote
from typing import Any, ClassVar, Self

from airflow_ft.protocol.failure import listed, with_fix
from airflow_ft.protocol.reasons import AbortReason


class AirflowFtError(Exception):
    """Base of all errors of this package.

    Args:
        what: what happened, in one or two sentences without secrets.
        code: the stable name of this kind of error, such as `column_missing`; by default that of the class.
        remedy: what to do, with the real names in it.
        pipeline, checkpoint, participant, sink, column, row: where; they precede `what` in the message.
        fields: other names and values that the message contains, for programs and tests. No secrets.
    """

    code: str = "unexpected"
    """The stable name of this kind of error. Programs compare this, and never the message."""
    abort_reason: ClassVar[AbortReason] = AbortReason.STAGE_FAILED
    """The abort reason of a checkpoint that ends with this error before it is published."""
    unconnected: int = False
    """Whether `participant` is the name of a sink, and not that of an Airflow connection (`located`)."""
    unstored: bool = False
    """Whether a task failed with this error and the decision log did not get the failure, so the page lacks it."""

    def __init__(
        self,
        what: str,
        *,
        code: str = "",
        remedy: str = "",
        pipeline: str = "",
        checkpoint: int = 0,
        participant: str = "",
        sink: str = "",
        column: str = "",
        row: str = "",
        **fields: Any,
    ) -> None:
        self.what = what
        self.code = code or type(self).code
        self.fields = fields
        self.remedy = remedy
        self.pipeline = pipeline
        self.checkpoint = checkpoint
        self.participant = participant
        self.sink = sink
        self.column = column
        self.row = row
        super().__init__(self._text())

    @property
    def headline(self) -> str:
        """Return where, and what happened: the message without code and remedy."""
        alone = self.unconnected and self.participant  # one sink, whose own name may be unknown here
        where = ", ".join(
            f"{label} {value!r}" if isinstance(value, str) else f"{label} {value}"
            for label, value in (
                ("pipeline", self.pipeline),
                ("checkpoint", self.checkpoint),
                ("connection", "" if alone else self.participant),
                ("sink", self.sink or alone),
                ("column", self.column),
                ("row", self.row),
            )
            if value
        )
        return f"{where}: {self.what}" if where else self.what

    @property
    def log_lines(self) -> list[str]:
        """Return what a log shows: class, code and headline; then the remedy, if there is one."""
        first = f"{type(self).__name__} [{self.code}]: {self.headline}"
        return [first, f"Fix: {self.remedy}"] if self.remedy else [first]

    def _text(self) -> str:
        first, line, rest = self.headline, "", ""
        if "codes" in self.fields:  # a list, whose last line is the remedy of its last problem
            first, line, rest = self.headline.partition("\n")
        return with_fix(f"{first} [{self.code}]{line}{rest}", self.remedy)

    def located(self, **where: str | int) -> AirflowFtError:
        """Fills in what was not known where the error was raised (pipeline=, checkpoint=, ...); returns itself."""
        if self.participant:  # perhaps a connection, which `unconnected` would call a sink
            where.pop("unconnected", None)
        for name, value in where.items():
            if not getattr(self, name):
                setattr(self, name, value)
        return self.filled(self.pipeline)

    def filled(self, pipeline: str, dag_file: str = "") -> Self:
        """Puts the pipeline and its DAG file into the commands that the remedy shows; returns itself."""
        self.what = filled(self.what, pipeline, dag_file, self.checkpoint)
        self.remedy = filled(self.remedy, pipeline, dag_file, self.checkpoint)
        self.args = (self._text(),)
        return self


_COMMANDS = (
    r"adopt|checkpoints|doctor|recover|reset-state|resume|retire|rewind|savepoint trigger|setup|state show|stop|verify"
)
_UNNAMED = re.compile(rf"(airflow ft (?:{_COMMANDS}))(?: PIPELINE)?(?=`| --)")
_UNNAMED_DRY_RUN = re.compile(r"airflow ft dry-run(?=`)")
_UNNAMED_DOUBT = re.compile(r"airflow ft in-doubt(?=`| --(?!pipeline))")
_UNNUMBERED = re.compile(r"airflow ft in-doubt [^`]*--(?:abort|commit|dead-letter|quarantine|redeliver)(?=`)")


def filled(text: str, pipeline: str, dag_file: str = "", checkpoint: int = 0) -> str:
    """The text with the pipeline, checkpoint and DAG file in the commands that it shows, as far as they are known."""
    if pipeline:
        text = _UNNAMED.sub(lambda found: f"{found[1]} {pipeline}", text)
        text = _UNNAMED_DRY_RUN.sub(lambda found: f"{found[0]} {pipeline} --dag FILE", text)
        text = _UNNAMED_DOUBT.sub(lambda found: f"{found[0]} --pipeline {pipeline}", text)
    if checkpoint:
        text = _UNNUMBERED.sub(lambda found: f"{found[0]} {checkpoint}", text)
    return text.replace("--dag FILE", f"--dag {quote(dag_file)}") if dag_file else text


class TransientError(AirflowFtError):
    """Trying again may help; nothing was lost and nothing is half visible without a proof of it."""


class TerminalError(AirflowFtError):
    """Trying the same again will not help."""


def together(problems: Sequence[AirflowFtError], what: str = "problems") -> AirflowFtError:
    """Return one error for all of `problems`: a single one itself, otherwise a list of the type of the first terminal.

    `what` names in the plural what there are several of. `fields["codes"]` has the codes of all, and
    `fields["sinks"]` the sinks.
    """
    first = next((problem for problem in problems if isinstance(problem, TerminalError)), problems[0])
    if len(problems) == 1:
        return first
    codes = [problem.code for problem in problems]
    error: AirflowFtError = type(first).__new__(type(first))
    AirflowFtError.__init__(
        error,
        f"{len(problems)} {what}:{listed(f'{number}. {problem}' for number, problem in enumerate(problems, 1))}",
        code=codes[0] if len(set(codes)) == 1 else "several_problems",
        remedy="Correct all of them.",
        codes=codes,
        sinks=(sinks := [problem.sink for problem in problems]),
    )
    return error.located(sink=sinks[0]) if len(set(sinks)) == 1 else error
