"""What holds of operator state besides I1 to I10: windows that a drain empties, and what a stream deletes at its end.

An item that a window holds comes out once: when the window closes, or by a drain. It comes once more only where a run
goes on from the state before a drain, and is lost only with a state that the stream's settings give up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import ConfigurationError, TerminalError
from airflow_ft.protocol.model import AfterAbort, Checkpoint, ExternalizedRetention, RunKey, SparkPosition
from airflow_ft.protocol.pipelines import Request
from airflow_ft.spark.savepoints.stopping import DRAIN
from tests.simulation.kernel import Death, Violation
from tests.simulation.source import CLOSED, Item, Wal

if TYPE_CHECKING:
    from tests.simulation.laws import Laws
    from tests.simulation.world import Scenario

PIPELINE = "orders"
_ALL = 1000


class StateLaws:
    """Remembers which state was dropped, and what was open in it.

    `is_asked` tells whether streams are to stop, `run` is the run of the current process (None: a person's), and
    `process` its name, `since` when it has begun to stage, or to look whether it has to.
    """

    def __init__(
        self,
        laws: Laws,
        store: Any,
        wal: Wal,
        scenario: Scenario,
        *,
        is_asked: Callable[[], bool],
        run: Callable[[], RunKey | None],
        process: Callable[[], str],
        since: Callable[[], datetime | None],
    ) -> None:
        self._laws, self._store, self._wal, self._scenario = laws, store, wal, scenario
        self._is_asked, self._run, self._process, self._since = is_asked, run, process, since
        self._base: SparkPosition | None = None
        self._without_state: set[str] = set()  # locations that began without state
        self._failing: set[str] = set()  # processes that have deleted without being asked to stop
        self.ended: set[int] = set()  # items behind which a state was dropped
        self.dropped: dict[int, datetime] = {}  # items that were open there, and when they went

    # --- the decision log -----------------------------------------------------------------------------------------

    def look_at(self, base: SparkPosition | None) -> None:
        """After a change: what is retained can be read, and state is dropped by who may."""
        before, self._base = self._base, base
        if base is not None and self._wal.states[base.location].get(base.batch) == CLOSED:
            raise Violation("I1", f"whoever goes on does so from {base}, which was drained")
        if base is not None and base.batch < 0 and base.location not in self._without_state:
            assert before is not None
            self._without_state.add(base.location)
            self._look_at_dropped(self._wal.batch(before))
        for kept in self._store.prunable(PIPELINE, 0, _ALL):
            if kept.segment.location not in self._wal.segments:
                raise Violation("I10", f"the rows of checkpoint {kept.number} are retained, and gone")
            if kept.position is not None and not self._wal.has(kept.position):
                raise Violation("I10", f"the state of checkpoint {kept.number}, {kept.position}, is retained, and gone")

    def _look_at_dropped(self, item: int) -> None:
        left = [checkpoint.number for checkpoint in self._checkpoints() if checkpoint.is_undelivered]
        if left:
            raise Violation("I10", f"the state behind item {item} was dropped, and {left} is not confirmed")
        self.ended.add(item)
        if self._run() is not None:
            self._require_deletes(f"the state behind item {item} was dropped")
        if not self._scenario.windows or self._laws.is_visible(item):
            return
        if self._run() is None:
            raise Violation("I10", f"item {item} was open in a state that somebody took for drained, and is lost")
        if asked := [each.id for each in self._store.open_requests(PIPELINE) if each.arguments.get(DRAIN)]:
            raise Violation("I10", f"item {item} was dropped, although requests {asked} are to drain it")
        self.dropped[item] = self._store.now()

    def pruned(self, number: int) -> None:
        """Before the rows go: the newest ones stay, unless the stream has ended, and was to delete them."""
        delivered = [checkpoint for checkpoint in self._checkpoints() if checkpoint.delivered_by is not None]
        newest = max(checkpoint.number for checkpoint in delivered)
        row = self._store.checkpoint(PIPELINE, number)
        if row.delivered_by < newest:
            return
        self._require_deletes(f"checkpoint {number} was pruned, the newest one")
        run, since = self._run(), self._since()
        if run is not None and since is not None and row.run != run and row.staged_at > since:
            raise Violation("I5", f"{run} has pruned checkpoint {number} of {row.run}, which has staged since")

    def _require_deletes(self, what: str) -> None:
        """Whether a stream that ends now keeps nothing; that it has failed is seen when its process ends."""
        leaves = self._scenario.leaves
        if leaves is ExternalizedRetention.RETAIN_ON_CANCELLATION:
            raise Violation("I10", f"{what}; it was to be retained")
        if self._is_asked():
            return
        if leaves is ExternalizedRetention.DELETE_ON_CANCELLATION:
            raise Violation("I10", f"{what}, and nobody has asked the stream to stop")
        self._failing.add(self._process())

    def ended_with(self, process: str, error: BaseException | None, *, last_try: bool) -> None:
        """What was deleted without a request to stop is of a stream that has failed for good."""
        if process in self._failing and not (last_try or isinstance(error, (Death, TerminalError))):
            raise Violation("I10", f"{process} has deleted what it had, and ended with {error!r}")

    def is_refusal(self, error: BaseException) -> bool:
        """Whether a run was refused because the pipeline is drained, and it is."""
        if not isinstance(error, ConfigurationError) or error.code != "pipeline_drained" or self._scenario.resumes:
            return False
        return any(c.drained and c.after_abort is not AfterAbort.REWOUND for c in self._checkpoints())

    def _checkpoints(self) -> Sequence[Checkpoint]:
        return list(self._store.checkpoints(PIPELINE, _ALL))

    # --- the sinks ------------------------------------------------------------------------------------------------

    def parent_of(self, item: Item, shown: str) -> str:
        """What the item is computed on: what was shown of the one before it, or nothing where a state began anew."""
        return "" if item.number - 1 in self.ended else shown

    def look_at_rows(self, visible: Sequence[Item], shown: dict[int, str], where: str) -> None:
        """Each item once, in order; twice where a drained window has closed later; none but what was dropped lacks."""
        before = Item(0, "", "")
        for item in visible:
            if item.number == before.number:
                if not (self._scenario.resumes and before.drained and not item.drained):
                    raise Violation("I2", f"{where} shows item {item.number} twice")
            else:
                wanted = before.number + 1
                while wanted in self.dropped:
                    wanted += 1
                if item.number != wanted:
                    raise Violation("I2" if item.number < wanted else "I4", f"{where} shows {item} behind {before}")
                if item.parent != self.parent_of(item, shown.get(item.number - 1, "")):
                    raise Violation("I1", f"{where} shows {item}, computed on {item.parent or 'nothing'}")
            if shown.setdefault(item.number, item.variant) != item.variant:
                raise Violation("I3", f"{where} shows {item}, another sink or a drain {shown[item.number]}")
            before = item

    # --- the end --------------------------------------------------------------------------------------------------

    def item_at(self, position: SparkPosition) -> int:
        """Return the newest item that was read at this position."""
        return self._wal.batch(position)

    def answered(self, request: Request, outcome: str) -> None:
        """I9: the checkpoint that the answer names has drained the state."""
        if request.arguments.get(DRAIN) and outcome.endswith("has drained the state"):
            number = int(outcome.split()[-5])
            drain = self._store.checkpoint(PIPELINE, number)
            if drain.drained is None or drain.delivered_by is None:
                raise Violation("I9", f"request {request.id} is answered {outcome!r}, and {number} is {drain.state}")

    def all_that_comes(self, items: int) -> set[int]:
        """What is visible in the end of so many items; also the newest one, where its window was drained."""
        newest = {items} if self._scenario.windows and not self._laws.is_visible(items) else set()
        return set(range(1, items + 1)) - set(self.dropped) - newest

    def at_the_end(self) -> None:
        """I7: what is not to be kept has gone, since the last run was asked to stop, and met no fault."""
        if self._scenario.leaves is ExternalizedRetention.RETAIN_ON_CANCELLATION:
            return
        base = self._store.pipeline(PIPELINE).base
        left = {*self._wal.segments, *self._wal.states} - {base.location if base is not None else ""}
        if left or (base is not None and base.batch >= 0):
            raise Violation("I7", f"the stream was to leave nothing, and {sorted(left)} is left beside {base}")
