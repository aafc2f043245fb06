"""What holds of streams besides I1 to I10 of each checkpoint: gates that open while they run, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.protocol.model import CheckpointState, RunKey
from airflow_ft.protocol.pipelines import Request
from airflow_ft.protocol.planning import quarantined, stranded
from airflow_ft.protocol.reasons import AbortReason
from tests.simulation.kernel import Violation

if TYPE_CHECKING:
    from tests.simulation.laws import Laws
    from tests.simulation.request_laws import RequestLaws

PIPELINE = "orders"
NEWEST = 3  # numbers whose gates are looked at


class StreamLaws:
    """Remembers when the source held how much, by the decision log's clock.

    `at_work` names the drivers of the current process, `streaming` those whose epoch is the pipeline's, which had begun
    at some time, and are of some run (None: any), `run` is the current process's run, and `requests` their own laws;
    `stood_still`: whether anything has, or a clock was moved, so that a time-out says nothing.
    """

    def __init__(
        self,
        laws: Laws,
        store: Any,
        *,
        at_work: Callable[[], list[str]],
        streaming: Callable[[datetime, RunKey | None], list[str]],
        run: Callable[[], RunKey | None],
        stood_still: Callable[[], bool],
        requests: RequestLaws,
        windows: bool = False,
        min_pause: timedelta = timedelta(0),
    ) -> None:
        self._open, self._min_pause, self.requests = int(windows), min_pause, requests
        self._laws, self._store, self._at_work, self._streaming, self._run = laws, store, at_work, streaming, run
        self._held: list[tuple[datetime, int]] = []
        self._opened = self._through = 0  # gates that have opened: so many times, and numbers up to this one
        self.last_asked: datetime | None = None  # until then somebody wanted an end: a request was open, the DAG paused
        self.somebody_is_in_a_hurry = False  # has asked for an end at once: then nothing has to be drained
        self.clock_went_back = False  # then the log's times say nothing any more
        self._stood_still = stood_still
        self._raised: set[int] = set()  # numbers in whose micro-batch the job has raised

    def source_holds(self, items: int) -> None:
        """So many, from now on."""
        self._held.append((self._store.now(), items))

    def watch(self) -> None:
        """Every gate, as if somebody waited for it, until it opens: on what is visible everywhere."""
        self.requests.watch()
        for at, items in [] if self.clock_went_back else self._held[self._opened :]:
            if not Gate(as_of=at).is_open(self._store, PIPELINE):
                break  # those of later times are closed, too
            self.opened_as_of(items)
            self._opened += 1
        for number in sorted(self._laws.segments)[-NEWEST:]:
            if number > self._through and Gate(number=number).is_open(self._store, PIPELINE):
                self.opened_through(number)
                self._through = number

    def opened_as_of(self, items: int) -> None:
        """I9: all that the source held at that time is visible, but what a window still holds."""
        if not self.clock_went_back:
            for item in range(1, items + 1 - self._open):
                self._laws.require_visible(item, f"the gate of the time when the source held {items} items opened")

    def opened_through(self, number: int) -> None:
        """I9: all that was published by then is visible, as it was or computed again."""
        for published, item in self._laws.published().items():
            if published <= number:
                self._laws.require_visible(item, f"the gate of checkpoint {number} opened")

    def expired(self, number: int, reason: AbortReason | None, shown_by: set[str]) -> None:
        """I3: what has EXPIRED is never visible under its number."""
        if reason is AbortReason.EXPIRED and shown_by:
            raise Violation("I3", f"checkpoint {number} has EXPIRED, and {', '.join(sorted(shown_by))} shows it")
        if reason is AbortReason.EXPIRED and number in self._raised and not self._stood_still():
            raise Violation("I7", f"the job raised in checkpoint {number}, and its time-out was awaited all the same")

    def computes(self, number: int) -> None:
        """`min_pause`: when it was triggered, nothing was under way, and the newest was confirmed so long before.

        What was carried, or given up, is not under way; and clocks that were moved say nothing.
        """
        if not self._min_pause or self._stood_still():
            return
        triggered = self._store.checkpoint(PIPELINE, number).triggered_at
        for other in self._store.checkpoints(PIPELINE, 1000):
            if other.number == number or other.segment is None or other.staged_at > triggered:
                continue
            done = other.completed_at
            if other.state in (CheckpointState.STAGED, CheckpointState.PREPARED, CheckpointState.COMMITTING):
                raise Violation("I7", f"{number} was triggered beside {other.number}, which is {other.state}")
            if done is not None and triggered - done < self._min_pause:
                raise Violation("I7", f"{number} was triggered {triggered - done} after {other.number} was confirmed")

    def job_raised(self, number: int) -> None:
        """In the micro-batch of this number."""
        self._raised.add(number)

    def called(self, name: str, args: Sequence[Any], epoch: int | None = None, missing: Sequence[str] = ()) -> None:
        """Before a call to the decision log takes effect; it will not with another `epoch` than the newest."""
        if epoch is not None and epoch != self._store.pipeline(PIPELINE).epoch:
            return
        if name == "answer":
            self.last_asked = self._store.now()
            self._answered(self._store.request(PIPELINE, args[1]), args[2], missing)
        elif name == "prune":
            if self._laws.states is not None:
                self._laws.states.pruned(args[1])
        elif drivers := self._at_work():
            raise Violation("I7", f"{args[2]} is published beside {', '.join(drivers)}, whose next one will be refused")

    def _answered(self, request: Request, outcome: str, missing: Sequence[str]) -> None:
        """I9: a request to stop is answered when no process works, and everything published is delivered."""
        self.requests.answered(request, outcome, missing)
        run = self._run()
        if run is None or request.outcome or self.clock_went_back:
            return
        of_all = outcome.startswith("stopped")  # else: nothing was running of this run
        if working := self._streaming(request.asked_at, None if of_all else run):
            raise Violation("I9", f"request {request.id} is answered {outcome!r} beside {', '.join(working)}")
        if not of_all:
            return
        if working := self._at_work():
            raise Violation("I9", f"the stream is said to have stopped, and {', '.join(working)} is at work")
        for checkpoint in self._store.run_checkpoints(PIPELINE, run):
            if not checkpoint.is_settled:
                raise Violation(
                    "I9", f"the stream is said to have stopped, and {checkpoint.number} is {checkpoint.state}"
                )
        if self._laws.savepoints is not None:
            self._laws.savepoints.after_savepoint(outcome)
        if self._laws.states is not None:
            self._laws.states.answered(request, outcome)

    def quiet(self) -> None:
        """I7: a stream that has nothing left to do has left nothing: no rows wait for a number.

        While one is in quarantine, nothing behind it is delivered, nor given another number.
        """
        found = self._store.open_checkpoints(PIPELINE)
        if self._streaming(self._store.now(), None) and not quarantined(found) and (left := stranded(found)):
            raise Violation("I7", f"nobody delivers the rows of {[segment.number for segment in left]}")

    def at_the_end(self) -> None:
        """I7: whoever has asked has an answer."""
        self.requests.at_the_end()
        for at, _ in [] if self.clock_went_back else self._held:
            if not Gate(as_of=at).is_open(self._store, PIPELINE):
                raise Violation("I7", f"everything is delivered, and the gate as of {at} is closed")
