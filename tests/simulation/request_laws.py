"""Laws of requests to stop: each is answered once, and an answer without `missing` is true.

A savepoint holds the state of the moment when it was requested, and a drain leaves no rows behind. State that was
deleted earlier does not count if a run has taken the turn since: the request is to that run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.pipelines import Request
from airflow_ft.spark.savepoints.stopping import DRAIN, SAVEPOINT
from tests.simulation.kernel import Violation

if TYPE_CHECKING:
    from tests.simulation.laws import Laws

PIPELINE = "orders"
_NAMED = re.compile(r"savepoint of checkpoint \d+: ([^\s;]+)")
_ALL = 1000


class RequestLaws:
    """Remembers when state was deleted, when a run took the turn, and the first answer to each request.

    `has_state` returns whether a location of Spark has state, and `is_faultless` whether no fault has occurred yet.
    """

    def __init__(
        self, laws: Laws, store: Any, *, has_state: Callable[[str], bool], is_faultless: Callable[[], bool]
    ) -> None:
        self._laws, self._store, self._has_state, self._is_faultless = laws, store, has_state, is_faultless
        self._without_state = set[str]()  # locations that began without state
        self._turn: RunKey | None = None
        self._turns: list[datetime] = []
        self._deleted: list[datetime] = []
        self._had_state = False
        self._answers: dict[int, tuple[str, tuple[str, ...]]] = {}

    def watch(self) -> None:
        """After a change of the decision log."""
        row, now = self._store.pipeline(PIPELINE), self._store.now()
        if row.turn is not None and row.turn != self._turn:
            self._turns.append(now)
        self._turn = row.turn
        if row.base is None:
            return
        if row.base.batch >= 0:
            self._had_state = self._has_state(row.base.location)
        elif row.base.location not in self._without_state:  # otherwise a refusal of rows has rewound it to there
            self._without_state.add(row.base.location)
            self._deleted += [now] if self._had_state else []

    def answered(self, request: Request, outcome: str, missing: Sequence[str]) -> None:
        """I9: check an answer before it is written. Only the first answer has an effect."""
        if request.outcome:
            return
        self._answers[request.id] = (outcome, tuple(missing))
        self._judge(request.arguments, outcome, missing, request.asked_at, f"request {request.id}")

    def told(self, arguments: Mapping[str, Any], said: str, asked_at: datetime, who: str) -> None:
        """A task that stops the stream has succeeded, with the answer to its request or because no process works."""
        for outcome, missing in self._answers.values():
            if said == outcome:
                if missing:
                    raise Violation("I9", f"{who} has succeeded, and its {', '.join(missing)} is missing: {said!r}")
                return
        self._judge(arguments, said, (), asked_at, who)

    def _judge(
        self, arguments: Mapping[str, Any], outcome: str, missing: Sequence[str], asked_at: datetime, who: str
    ) -> None:
        if self._laws.streams is not None and self._laws.streams.clock_went_back:
            return
        if arguments.get(SAVEPOINT) and SAVEPOINT not in missing:
            self._require_savepoint(outcome, asked_at, who)
        if arguments.get(DRAIN) and DRAIN not in missing:
            self._require_drained(outcome, asked_at, who)

    def _is_behind(self, deleted: datetime, asked_at: datetime) -> bool:
        """Return whether the request is for the state that was deleted then: no run has begun in between."""
        return not any(deleted < turn <= asked_at for turn in self._turns)

    def _require_savepoint(self, outcome: str, asked_at: datetime, who: str) -> None:
        assert self._laws.savepoints is not None
        whole = self._laws.savepoints.whole
        found = [whole[uri] for uri in _NAMED.findall(outcome) if uri in whole]
        confirmed = [row for row in self._store.checkpoints(PIPELINE, _ALL) if row.completed_at is not None]
        covered = max((row.number for row in confirmed if row.completed_at <= asked_at), default=0)
        found = [each for each in found if each.number >= covered]
        if not found:
            raise Violation("I9", f"{who} is answered {outcome!r}, and there is no savepoint of {covered}")
        lost = [deleted for deleted in self._deleted if self._is_behind(deleted, asked_at)]
        if lost and all(each.batch < 0 for each in found):
            raise Violation("I9", f"{who} is answered {outcome!r}, and the savepoint lacks the state")

    def _require_drained(self, outcome: str, asked_at: datetime, who: str) -> None:
        states = self._laws.states
        if states is None:
            return
        for item, dropped in states.dropped.items():
            if self._is_behind(dropped, asked_at):
                raise Violation("I10", f"{who} is answered {outcome!r}, and item {item} was dropped")
        base = self._store.pipeline(PIPELINE).base
        for item in range(1, (states.item_at(base) if base is not None else 0) + 1):
            self._laws.require_visible(item, f"{who} is answered {outcome!r}")

    def at_the_end(self) -> None:
        """I7: each request has exactly one answer, the first; and without a fault nothing is missing."""
        if left := self._store.open_requests(PIPELINE):
            raise Violation("I7", f"the requests {[request.id for request in left]} were never answered")
        events = self._store.events(PIPELINE, limit=_ALL)
        answered = Counter(event.detail["id"] for event in events if event.kind == "ANSWERED")
        asked = [event.detail["id"] for event in events if event.kind == "REQUESTED"]
        for id in asked:
            request = self._store.request(PIPELINE, id)
            if answered[id] != 1 or (request.outcome, request.missing) != self._answers.get(id):
                what = f"request {id} was answered {answered[id]} times: {self._answers.get(id)}, {request}"
                raise Violation("I9", what)
            if id == 1 and request.missing and self._is_faultless():  # later ones may come too late
                raise Violation("I7", f"nothing went wrong, and request {id} lacks its {', '.join(request.missing)}")
