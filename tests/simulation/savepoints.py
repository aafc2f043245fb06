"""People who take and restore savepoints in the simulator's world, beside whatever is at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    FencedError,
    LeaseHeldError,
    StageError,
    StateConflictError,
    TransientError,
    WalCorruptError,
)
from airflow_ft.protocol.from_savepoint import BEGINNING, ClaimMode, FromSavepoint, Later
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import RunKey
from airflow_ft.spark.savepoints.converting import Backend, convert
from airflow_ft.spark.savepoints.metadata import Savepoint, listing, read_metadata
from airflow_ft.spark.savepoints.rescaling import rescale
from airflow_ft.spark.savepoints.restoring import restore, restore_once
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.spark.state.catching_up import catch_up
from airflow_ft.spark.state.locations import open_location
from airflow_ft.store.errors import UnknownPipelineError
from tests.simulation.files import LOG, STATE
from tests.simulation.kernel import Violation
from tests.simulation.laws import PIPELINE
from tests.simulation.model_store import ModelStore
from tests.simulation.savepoint_laws import Order, SavepointLaws

if TYPE_CHECKING:
    from tests.simulation.world import World

FOLDER = "file:///savepoints"
COPY = "orders_b"
VERBS = ("savepoint", "restore", "rescale", "convert")
_LOOK_SECONDS = 5.0
_NONE = 2**62
_REFUSALS = (ConfigurationError, StateConflictError, WalCorruptError, LeaseHeldError, FencedError)


class Savepoints:
    """The part of a world that takes and restores savepoints."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.files = world.files
        self.laws = SavepointLaws(world.laws, world.log, world.wal, self.files, self._process)
        world.laws.savepoints = self.laws
        self.laws.may_leave = world.operators.may_leave
        self.laws.replaces = {kind for kind, _ in world.scenario.sinks.values()} == {"upsert"}

    def person(self, verb: str, how: str) -> None:
        """Takes one as soon as something is confirmed that the others do not cover ("now": anything); or restores one.

        "again", as soon as more has been confirmed: that comes once more; "continue": it stays. "claim": it is deleted
        then. "copy": into another pipeline. "oldest", "middle": not the newest one; "changed": one that was made of
        another one. "once": by the run that is at work. "beginning": none, all is read anew, as soon as something
        is confirmed ("late": more than one; "now": at once). Or has another one made of one ("rescale", "convert").
        """
        if verb == "savepoint":
            self._wait(lambda: self._confirmed() > (0 if how == "now" else self._covered(0)))
            self._take()
        elif verb in ("rescale", "convert"):
            self._wait(lambda: bool(self.laws.whole))
            self._change(verb, how.split())
        else:
            more = "again" in how or "continue" in how
            if "beginning" in how:
                self._wait(lambda: self._confirmed() > ("late" in how) or "now" in how)
                self._restore(how.split())
                return
            self._wait(lambda: self._confirmed() > self._covered(_NONE) if more else bool(self.laws.whole))
            if "changed" in how:
                self._wait(lambda: any(map(_is_changed, self.laws.whole.values())))
            self._restore(how.split())

    def _covered(self, without: int) -> int:
        """The newest number that a savepoint covers, if there is one."""
        return max((savepoint.number for savepoint in self.laws.whole.values()), default=without)

    def damage(self) -> None:
        """A bit of the newest savepoint turns."""
        for uri in list(self.laws.whole)[-1:]:
            for name in self.files.saved:
                if name.startswith(f"{uri}/spark/{STATE}"):
                    self.files.saved[name] += b"?"
                    self.laws.damaged.add(uri)

    def _take(self) -> None:
        had_one = self._confirmed()
        try:
            take(self._world.store, PIPELINE, FOLDER, "a person")
        except WalCorruptError as error:
            raise Violation("I10", f"no savepoint could be taken: {error}") from error
        except (ConfigurationError, UnknownPipelineError):
            if had_one:
                raise
        except TransientError:
            pass  # he may try again

    def _restore(self, how: list[str]) -> None:
        uri = BEGINNING if "beginning" in how else self._chosen(how)
        if not uri:
            return
        if "copy" in how:
            self._copy(uri)
            return
        later = Later.WRITE_AGAIN if "again" in how else Later.CONTINUE if "continue" in how else Later.REFUSE
        claim = ClaimMode.CLAIM if "claim" in how else ClaimMode.NO_CLAIM
        leaves = "leaving" in how
        self.laws.begins(Order(uri, later, uri in self.laws.damaged, leaves))
        by, lease = (self._world.open, Worker("a person")), self._world.scenario.lease
        run: RunKey | None = None
        try:
            if "once" in how:
                run = next((run for run in self._world.runs if not run.over), self._world.runs[-1]).key
                from_savepoint = FromSavepoint(uri, later, claim, leaves)
                once = restore_once(
                    self._world.store, from_savepoint, PIPELINE, run, *by, wal_root=LOG, lease_seconds=lease
                )
                if once is None:
                    self.laws.after_repeated_restore(run)
                    return
                restored = once
            else:
                restored = restore(
                    self._world.store,
                    uri,
                    *by,
                    "a person",
                    pipeline=PIPELINE,
                    later=later,
                    claim=claim,
                    allow_non_restored_state=leaves,
                    lease_seconds=lease,
                )
        except _REFUSALS as error:
            self.laws.after_refusal(error)
        except TransientError:
            pass  # he does not know
        except UnknownPipelineError:
            if uri != BEGINNING:
                raise
        else:
            if restored.savepoint is None and restored.position is None:
                self.laws.after_nothing_read(run)
            else:
                self.laws.after_restore(restored.later)

    def _chosen(self, how: list[str]) -> str:
        """ "": there is none."""
        listed = [(uri, savepoint) for uri, savepoint in listing(FOLDER) if savepoint is not None]
        found = [uri for uri, savepoint in listed if _is_changed(savepoint) or "changed" not in how]
        return found[-1 if "oldest" in how else len(found) // 2 if "middle" in how else 0] if found else ""

    def _change(self, verb: str, how: list[str]) -> None:
        """`airflow ft savepoint rescale`, `convert`."""
        if not (uri := self._chosen(how)):
            return
        order = Order(uri, Later.REFUSE, uri in self.laws.damaged)
        made = (FOLDER, "a person", {}, lambda _: None)
        try:
            savepoint = read_metadata(uri)
            if verb == "rescale":
                partitions = {operator.partitions for operator in savepoint.operators}
                changed, _ = rescale(uri, 3 if 4 in partitions else 4, *made)
            else:
                rocksdb = savepoint.backend == Backend.ROCKSDB.short
                changed, _ = convert(uri, Backend.HDFS if rocksdb else Backend.ROCKSDB, *made)
        except (ConfigurationError, WalCorruptError, StageError) as error:
            self.laws.after_refused_change(uri, error)
        except TransientError:
            pass  # nothing could be written: he may try again
        else:
            self.laws.after_change(order, changed)

    def _copy(self, uri: str) -> None:
        """Under another name, with another decision log."""
        other: Any = ModelStore(self._world.store_clock)
        try:
            restored = restore(
                other, uri, self._world.open, Worker("a person"), "a copy", pipeline=COPY, wal_root=LOG.rstrip("/")
            )
        except (*_REFUSALS, TransientError):
            return
        self.laws.after_copy(uri, restored.position, other.pipeline(COPY).base)
        try:
            first = open_location(LOG.rstrip("/"), COPY, 2, 1, restored.position, False)
            caught_up = catch_up(first, self._world.spark.compute_planned)
        except (AirflowFtError, OSError):
            return  # the first attempt of that pipeline has failed
        self.laws.after_catching_up(uri, caught_up.position(caught_up.batch))

    def _confirmed(self) -> int:
        try:
            latest = self._world.log.latest_confirmed(PIPELINE)
        except UnknownPipelineError:
            return 0
        return int(latest.number) if latest is not None else 0

    def _wait(self, until: Callable[[], bool]) -> None:
        """Until then, or until all runs are over."""
        world = self._world
        while not until() and not all(run.over for run in world.runs):
            world.kernel.wait(_LOOK_SECONDS)

    def _process(self) -> str:
        """The process that has sent what happens now, which may have been under way for long."""
        process = self._world.kernel.owner
        return process.name.partition("~")[0] if process is not None else ""


def _is_changed(savepoint: Savepoint) -> bool:
    """Whether it was made of another one."""
    return ", from " in savepoint.taken_by
