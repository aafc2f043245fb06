"""A table or topic that another pipeline fills: refused, unless both declare that they share it.

A copied DAG with another pipeline's name would deliver all rows a second time. So before a pipeline delivers into a
place for the first time, it is compared with the places of all other pipelines in the decision log. A plan is stored
before its votes are requested, and the first vote compares again. So of two pipelines that begin at once, at least one
sees the other and is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError, together
from airflow_ft.protocol.model import ParticipantPlan, Promise, RunKey
from airflow_ft.protocol.overview import Noted
from airflow_ft.protocol.pipelines import Filling

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import QueryLog
    from airflow_ft.protocol.delivery_log import DeliveryLog

SHARED = "shared"
"""The setting of a sink that declares it; left out of a plan where it is False."""
_EVENTS = 100  # looked at for the newest run of another pipeline
_RETIRED, _RENAMED = "RETIRED", "RENAMED"


@runtime_checkable
class Locating(Protocol):
    """A `ParticipantFactory` that knows where sinks lead. Sinks of kinds that cannot be shared are left out."""

    def written(self, plan: ParticipantPlan) -> Mapping[str, str]:
        """Return the table or topic of each sink, as its author wrote it."""

    def places(self, plan: ParticipantPlan) -> Mapping[str, Collection[str]]:
        """Return texts for the place of each sink. One of them is the same for the same place, however it is written.

        A cluster has several addresses, and a connection may name any of them.

        AirflowFtError: the connection is not known.
        """


@dataclass(frozen=True, slots=True)
class _Target:
    """The place of a sink: by the address of its connection, and by the name that its author wrote."""

    sink: str
    kind: str
    places: frozenset[str]
    written: tuple[str, str]  # participant, table or topic
    shared: bool
    numbers: bool
    """Whether it compares checkpoint numbers of its pipeline, so that it cannot be shared."""

    def is_that_of(self, other: _Target) -> bool:
        same = not self.places.isdisjoint(other.places) or self.written == other.written
        return self.kind == other.kind and same


def require_own_targets(
    store: DeliveryLog, pipeline: str, participants: Sequence[ParticipantPlan], places: object, *, staged: bool = True
) -> None:
    """Raise UnfitTargetError for each place that another pipeline fills, unless both declare it.

    Of two pipelines in one DAG, the declaration of the one that begins is enough. Places that the pipeline has
    delivered into before are its own. Then the check reads only its newest delivery. `places`: nothing is compared
    unless it is `Locating`. `staged`: whether rows wait meanwhile.
    """
    if not isinstance(places, Locating):
        return
    new = [target for each in _new(store, pipeline, participants, places) for target in _targets(each, places)]
    if not new:
        return
    kin, kinds = _kin(store, pipeline), {target.kind for target in new}
    dags = _dags(store, pipeline)
    found: dict[str, tuple[dict[str, _Target], Filling]] = {}  # by another pipeline: my sinks, its newest plan
    for filling in store.fillings(pipeline):
        if filling.pipeline in kin or _continues(store, pipeline, filling):
            continue
        theirs = [each for other in filling.participants if other.kind in kinds for each in _targets(other, places)]
        for target in new:
            for same in filter(target.is_that_of, theirs):
                if target.shared and (dags & filling.dags or _shares(store, filling, same, places)):
                    continue
                mine, newest = found.get(filling.pipeline, ({}, filling))
                found[filling.pipeline] = (mine | {target.sink: target}, max(newest, filling, key=lambda of: of.number))
    if found:
        problems = [_refused(pipeline, mine, filling, staged=staged) for mine, filling in found.values()]
        raise together(problems).located(pipeline=pipeline)


def _new(
    store: QueryLog, pipeline: str, participants: Sequence[ParticipantPlan], places: Locating
) -> Iterator[ParticipantPlan]:
    """Yield those with a place that the newest deliveries of the pipeline did not have."""
    own: set[tuple[str, str]] = set()

    def keys(of: ParticipantPlan) -> set[tuple[str, str]]:
        return {(of.name, written) for written in places.written(of).values()}

    with suppress(KeyError):  # not in the decision log yet
        newest = store.latest_confirmed(pipeline)
        if newest is not None and newest.plan is not None:
            own.update(*map(keys, newest.plan.participants))
        for each in participants:
            number = 0 if keys(each) <= own else store.last_delivered(pipeline, each.name)
            with suppress(KeyError):  # another decision log gave this number out
                plan = store.checkpoint(pipeline, number).plan if number else None
                own.update(*map(keys, plan.participants if plan is not None else ()))
    for each in participants:
        if not keys(each) <= own:
            yield each


def _targets(participant: ParticipantPlan, places: Locating) -> Iterator[_Target]:
    written = places.written(participant)
    try:
        found = places.places(participant)
    except AirflowFtError:  # perhaps the connection of another pipeline, which is gone
        found = {}
    for sink, text in written.items():
        where = found.get(sink) or [f"{participant.name}\n{text}"]
        given = participant.sinks[sink]
        shared, numbers = bool(given.get(SHARED)), bool(given.get("version_column"))
        yield _Target(sink, participant.kind, frozenset(where), (participant.name, text), shared, numbers)


def _kin(store: QueryLog, pipeline: str) -> set[str]:
    """Return the pipeline and those that continue it: their rows are its own."""
    found, name = set[str](), pipeline
    while name not in found:
        found.add(name)
        with suppress(KeyError):
            if (former := store.pipeline(name).former) is not None:
                name = former.pipeline
    return found


def _dags(store: QueryLog, pipeline: str) -> frozenset[str]:
    """Return the DAGs whose author declares for this pipeline and others: mapped groups make many in one DAG.

    If a run has the turn, only its DAG counts: another one may only have restored the pipeline.
    """
    with suppress(KeyError):
        overview = store.overview(pipeline)
        found = overview.dags if overview.turn is None else [overview.turn.dag_id]
        return frozenset(each for each in found if not RunKey(each, "").is_plain)
    return frozenset()


def _continues(store: QueryLog, pipeline: str, filling: Filling) -> bool:
    """Return whether the pipeline began with a savepoint of the other one, which has delivered nothing since."""
    with suppress(KeyError):
        event = store.noted(pipeline, Noted.RESTORED)
        of: Mapping[str, Any] = (event.detail.get("of") if event is not None else None) or {}
        return of.get("pipeline") == filling.pipeline and 0 < filling.number <= int(of["number"])
    return False


def _shares(store: QueryLog, filling: Filling, theirs: _Target, places: Locating) -> bool:
    """Return whether the other pipeline declares it, too, or can declare nothing any more."""
    if theirs.shared or filling.status == _RENAMED:
        return True
    for event in store.events(filling.pipeline, limit=_EVENTS):
        if event.kind == _RETIRED:
            return True
        if digest := event.detail.get("spec"):  # of its newest run, which may have had no rows to plan
            with suppress(KeyError):
                return any(_declares(each, theirs, places) for each in store.spec(digest).get("sinks", {}).values())
            return False
    return False


def _declares(sink: Mapping[str, Any], theirs: _Target, places: Locating) -> bool:
    """Return whether a sink of a specification is that one, and declares that its place is shared."""
    if not sink.get(SHARED) or sink.get("kind") != theirs.kind:
        return False
    as_planned = ParticipantPlan("", theirs.kind, "", Promise.REDO, 0, {"": sink})
    return places.written(as_planned).get("") == theirs.written[1]


def _refused(pipeline: str, mine: Mapping[str, _Target], filling: Filling, *, staged: bool) -> UnfitTargetError:
    other, places = filling.pipeline, ", ".join(sorted({target.written[1] for target in mine.values()}))
    has = (
        f"has delivered into it, up to checkpoint {filling.number}" if filling.number else "is about to deliver into it"
    )
    share = (
        " If both should write to it (SQL databases: not with strategy 'upsert'): set shared=True on the sinks of"
        f" both, and let {other!r} run once. In one DAG, this sink is enough."
    )
    give_up = f" If {other!r} was a trial: run `airflow ft retire {other}`, and set shared=True on this sink."
    if any(target.numbers for target in mine.values()):
        share, give_up = " Strategy 'upsert' allows no shared=True: it compares checkpoint numbers of one pipeline.", ""
    if not filling.number:
        give_up = f" If {other!r} was a trial: run `airflow ft rewind {other}`, which discards its undelivered rows."
    return UnfitTargetError(
        f"another pipeline writes to {places}: {other!r} {has}. Rows that both read would arrive twice.",
        code="target_shared",
        remedy=f"If you renamed {other!r} to {pipeline!r}: set the old name back. Or take a savepoint of {other!r},"
        f" then run `airflow ft savepoint restore PATH --pipeline {pipeline} --rename`. If {pipeline!r} is a copy that"
        f" continues where {other!r} stopped: restore that savepoint without --rename.{share}{give_up} Otherwise use"
        " another target." + (" The staged rows are kept." if staged else " Nothing was computed yet."),
        sink=next(iter(mine)) if len(mine) == 1 else "",
        other=other,
        targets=sorted({target.written[1] for target in mine.values()}),
        number=filling.number,
        staged=staged,
    )
