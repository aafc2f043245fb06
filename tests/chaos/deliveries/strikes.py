"""Carrying out a fault: a process begins its run, and something befalls it or a server that it needs."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from airflow_ft.testing.relay import Fate
from tests.chaos.deliveries.faults import Choice, Draw, Kind
from tests.chaos.deliveries.nursery import Child
from tests.chaos.deliveries.servers import Servers
from tests.disks import LIMIT

PATIENCE = 180.0  # seconds that a process may take for its steps, whatever was done to it


@dataclass(frozen=True)
class End:
    """How a process ended, by its own last words. `final`: with an error that no other try mends."""

    text: str
    final: bool = False

    @classmethod
    def of(cls, message: Mapping[str, Any] | None) -> End:
        """From its last message; None: it said nothing."""
        if message is None:
            return cls("killed")
        if "error" in message:
            return cls(f"{message['error']}: {message['message'][:400]}", not message["again"])
        return cls("done")

    @property
    def is_done(self) -> bool:
        """It has confirmed everything."""
        return self.text == "done"


@dataclass
class Strike:
    """What was done. `at`: monotonic. `state`: what was unfinished then. `zombie`: stands still and is to be woken.

    `rival`: how the process ended that was at work at the same time.
    """

    at: float
    state: list[tuple[int, str]]
    struck: bool
    end: End
    zombie: Child | None = None
    rival: End | None = None

    @property
    def counted(self) -> bool:
        """Whether it hit an unfinished checkpoint."""
        return self.struck and bool(self.state)


class Striker:
    """Strikes at one process. `look` tells what is unfinished, from outside."""

    def __init__(
        self, servers: Servers, draw: Draw, choice: Choice, quiet: float, look: Callable[[], list[tuple[int, str]]]
    ) -> None:
        self._servers, self._draw, self._choice = servers, draw, choice
        self._quiet, self._look = quiet, look

    def prelude(self, child: Child, order: Mapping[str, Any]) -> End:
        """A process dies, so that its successor has something to recover."""
        assert self._choice.before is not None
        child.order(**order, point=asdict(self._choice.before), action="kill")
        return End.of(child.receive(PATIENCE))

    def strike(self, child: Child, order: Mapping[str, Any], rival: Callable[[], Child]) -> Strike:
        """Sets the process to work, and lets it happen; returns when the process has ended or stands still.

        `rival` begins a second process, and sets it to work at once.
        """
        point = asdict(self._choice.point) if self._choice.point is not None else None
        match self._draw.fault.kind:
            case Kind.KILL | Kind.ZOMBIE if point is not None:
                action = "kill" if self._draw.fault.kind is Kind.KILL else "stop"
                child.order(**order, point=point, action=action)
                return self._result(child, child.receive(PATIENCE))
            case Kind.KILL | Kind.ZOMBIE:
                child.order(**order)
                time.sleep(self._choice.fraction * self._quiet)  # not a wait: the moment that was drawn
                number = signal.SIGKILL if self._draw.fault.kind is Kind.KILL else signal.SIGSTOP
                child.signal(number)
                return self._result(child, self._gone_or_still(child))
            case Kind.RIVAL:
                return self._rival(child, order, point, rival)
            case _:
                return self._ask(child, order, point)

    def _gone_or_still(self, child: Child) -> Mapping[str, Any] | None:
        deadline = time.monotonic() + PATIENCE
        while (message := child.receive(0.05)) is None and not child.has_ended and not child.is_stopped:
            if time.monotonic() > deadline:
                break
        return message

    def _result(self, child: Child, message: Mapping[str, Any] | None) -> Strike:
        """For a fault in the process itself: whatever it says, it was not struck."""
        at = time.monotonic()
        struck = message is None and (child.has_ended or child.is_stopped)
        if message is None and not struck:
            return Strike(at, self._look(), True, End(f"it did nothing for {PATIENCE:.0f} s"))
        if not struck:
            return Strike(at, [], False, End.of(message))
        zombie = None if child.has_ended else child
        try:
            return Strike(at, self._look(), True, End("stopped" if zombie else "killed"), zombie)
        except sqlite3.OperationalError:
            if zombie is None:
                raise
            # It holds SQLite's lock against readers, too, so it is ended: no zombie can be tried here.
            return Strike(at, [], False, End("stopped within SQLite's lock"))

    def _rival(
        self, child: Child, order: Mapping[str, Any], point: Mapping[str, Any] | None, rival: Callable[[], Child]
    ) -> Strike:
        """Both are at work from that moment on; the first one wakes up a moment after the second has begun."""
        child.order(**order, point=point, action="ask")
        if point is None:
            time.sleep(self._choice.fraction * self._quiet)  # not a wait: the moment that was drawn
        message = child.receive(PATIENCE if point is not None else 0)
        if (point is None and message is not None) or (point is not None and (message is None or "at" not in message)):
            return Strike(time.monotonic(), [], False, End.of(message))
        at, state = time.monotonic(), self._look()
        other = rival()
        if point is not None:
            time.sleep(10 * self._choice.pause)  # as above
            child.order()
        end = End.of(other.receive(PATIENCE))
        return Strike(at, state, True, End.of(child.receive(PATIENCE)), rival=end)

    # --- faults of what is around it ---

    def _ask(self, child: Child, order: Mapping[str, Any], point: Mapping[str, Any] | None) -> Strike:
        kind = self._draw.fault.kind
        action = "clock" if kind is Kind.CLOCK else "limit" if self._limits else "ask"
        child.order(**order, point=point, action=action, seconds=self._choice.hours * 3600)
        message = child.receive(PATIENCE)
        if message is None or "at" not in message:
            return Strike(time.monotonic(), [], False, End.of(message))
        state = self._look()
        at = time.monotonic()
        with self._mischief(child) as done:
            message = child.receive(PATIENCE)
            if message is None and not child.has_ended:
                return Strike(at, state, True, End(f"it did nothing for {PATIENCE:.0f} s"))
        struck = done()
        if kind in (Kind.FULL_LOG, Kind.FULL_STORE):
            struck = message is None or "error" in message  # what fits into the last block is no fault
        return Strike(at, state, struck, End.of(message))

    @property
    def _limits(self) -> bool:
        kind = self._draw.fault.kind
        disks = {Kind.FULL_LOG: self._servers.log_disk, Kind.FULL_STORE: self._servers.store_disk}
        return kind in disks and disks[kind].kind == LIMIT

    @contextmanager
    def _mischief(self, child: Child) -> Iterator[Callable[[], bool]]:
        """Does it, lets the process go on, and makes good again; what is given tells whether it took place."""
        server, servers, choice = self._draw.fault.server, self._servers, self._choice
        match self._draw.fault.kind:
            case Kind.RESTART:
                if choice.late:
                    child.order()
                    time.sleep(choice.pause)  # not a wait: the moment that was drawn
                    servers.all[server].kill()
                else:
                    servers.all[server].kill()
                    child.order()
                servers.restart(server)
                yield lambda: True
            case Kind.LOST_REPLY | Kind.LOST_REQUEST as kind:
                fate = Fate.LOSE_REPLY if kind is Kind.LOST_REPLY else Fate.LOSE_REQUEST
                servers.lose(server, fate, choice.skip, choice.pattern)
                child.order()
                lost: list[bool] = []
                try:
                    yield lambda: lost[0]
                finally:
                    lost.append(servers.lose_nothing(server))
            case Kind.FULL_LOG | Kind.FULL_STORE as kind:
                disk = servers.log_disk if kind is Kind.FULL_LOG else servers.store_disk
                servers.empty_journal()
                with disk.full():
                    child.order()
                    yield lambda: True
            case Kind.READ_ONLY:
                on = servers.read_only(server, True)
                try:
                    child.order()
                    yield lambda: on
                finally:
                    servers.read_only(server, False)
            case Kind.CLOCK:
                child.order()
                killer = threading.Timer(choice.fraction * self._quiet / 2, child.signal, [signal.SIGKILL])
                if choice.late:
                    killer.start()
                yield lambda: True
                killer.cancel()
            case kind:
                raise ValueError(kind)
