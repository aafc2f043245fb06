"""Requirements of a sink: what must be there before it takes rows. A system describes them once, and all gates read it.

The module `requirements` of a system yields a `Requirement` for each thing: server settings, ledger, tables.

| gate | reads |
| --- | --- |
| preflight of a stage | `lacks`: the problems of all requirements |
| `airflow ft doctor` | `Requirement.report`: each finding in words |
| `prepare`, delivering transaction | the checks behind them, which raise the same errors |
| fitting of a stage | `schema_problems` of the same module: the columns of the job |
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from airflow_ft.protocol.errors import AirflowFtError, SinkUnavailableError
from airflow_ft.sinks.base.memory import require_own

if TYPE_CHECKING:
    from airflow_ft.protocol.doctor import Examination
    from airflow_ft.sinks.base.memory import Head

ASK_SECONDS = 5.0  # that a system has for each of its answers before Spark starts


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a look at a requirement. `problems` keep rows out, `warnings` (text and remedy) do not.

    `text` describes what is there ("": nothing to say), `name` is a more exact name than the requirement's. `owner` is
    the decision log that owns the sink ("": none yet; None: unknown after this look).
    """

    text: str = ""
    problems: Sequence[AirflowFtError] = ()
    warnings: Sequence[tuple[str, str]] = ()
    name: str = ""
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that a sink needs. `look` finds out, or raises what is wrong; `sink`: the only one that needs it.

    `closer` is a look that may take longer, or lock, for the doctor.
    """

    name: str
    look: Callable[[], Finding]
    sink: str = ""
    closer: Callable[[], Finding] | None = None

    def find(self, look: Callable[[], Finding] | None = None) -> Finding:
        """Look, with each problem at its sink."""
        try:
            found = (look or self.look)()
        except AirflowFtError as error:
            return Finding(problems=[error.located(sink=self.sink)])
        return replace(found, problems=[each.located(sink=self.sink) for each in found.problems])

    def report(self, exam: Examination) -> bool:
        """Add the finding of a closer look to an examination. Return whether the requirement is met."""
        found = self.find(self.closer)
        name = found.name or self.name
        if found.text:
            exam.ok(name, found.text)
        for text, remedy in found.warnings:
            exam.warn(name, text, remedy)
        for problem in found.problems:
            exam.problem(name, text_of(problem), problem.remedy, problem.code, problem.sink)
        return not found.problems


def each_of(required: Iterable[Requirement]) -> Generator[Requirement]:
    """Yield them. To close it closes a generator, which may hold a connection; other collections hold none."""
    yield from required


def lacks(
    requirements: Iterable[Requirement], installation: str = "", owner: Callable[[], str] = str
) -> list[AirflowFtError]:
    """Return the problems of all requirements. If the server is away, nothing more is asked.

    If all are met, the sink must belong to this `installation` ("": any). `owner` returns the owner if no finding has
    one.
    """
    problems: list[AirflowFtError] = []
    with closing(each_of(requirements)) as required:
        for requirement in required:
            found = requirement.find()
            problems += found.problems
            if any(_is_away(problem, requirement.sink) for problem in found.problems):
                break
            if found.owner is not None:
                owner = partial(str, found.owner)
    if not problems and installation and (whose := owner()):
        require_own(whose, installation)
    return problems


def _is_away(problem: AirflowFtError, sink: str) -> bool:
    """Return whether the server is away, and not one table of it that is busy."""
    return isinstance(problem, SinkUnavailableError) and (not sink or problem.code == "server_unreachable")


def text_of(problem: AirflowFtError) -> str:
    """Return what a problem says, with its column: the sink is known."""
    return f"column {problem.column}: {problem.what}" if problem.column else problem.what


def ledger_finding(
    exists: bool,
    schema: str,
    check: Callable[[], object],
    creatable: Callable[[], object],
    head: Callable[[], Head | None],
) -> Finding:
    """Return the finding on the ledger of a server: `check` where it exists, else whether it is `creatable`."""
    if not exists:
        creatable()
        return Finding(f"missing; the first `prepare` creates it in schema {schema}", owner="")
    check()
    found = head()
    owner = "" if found is None else found.installation
    return Finding(f"exists in schema {schema}, with all privileges", owner=owner)
