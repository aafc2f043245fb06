"""The decision log as a process sees it: every operation is a call, at which something may go wrong."""

from __future__ import annotations

from inspect import getmembers, isfunction, signature
from typing import Any

from airflow_ft.protocol.errors import StoreUnavailableError
from airflow_ft.protocol.meter import Meter
from airflow_ft.store.decision_log import DecisionLog
from tests.simulation.kernel import Kernel
from tests.simulation.laws import Laws


class StoreClient:
    """The decision log as a process sees it: each method is a call."""

    def __init__(self, kernel: Kernel, store: DecisionLog, laws: Laws) -> None:
        self._kernel = kernel
        self._store = store
        self._laws = laws
        self.installation = store.installation
        self.url = store.url
        self.meter = Meter()

    def now(self) -> Any:
        return self._store.now()

    def close(self) -> None:
        pass

    def record_problem(self, *args: Any) -> None:
        """Not a call at which something may go wrong: it is for people, and its errors are ignored."""
        self._store.record_problem(*args)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        writes = name in _WRITES
        fenced = name in _FENCED
        kernel, laws = self._kernel, self._laws

        def lost(sent: bool) -> Exception:
            return StoreUnavailableError("no answer.", unanswered=sent and writes)

        def call(*args: Any, **kwargs: Any) -> Any:
            # As it is sent: when it arrives late, whoever has sent it may be at something else.
            order = laws.savepoints.order() if name == "restore" and laws.savepoints is not None else None

            def perform() -> Any:
                if name in ("publish", "answer", "prune") and laws.streams is not None:
                    laws.streams.called(name, args, kwargs.get("epoch"), kwargs.get("missing", ()))
                if not fenced:
                    return method(*args, **kwargs)
                with laws.fenced(name, args[1]):
                    if name == "restore" and laws.savepoints is not None:
                        run = args[4] if len(args) > 4 else None
                        return laws.savepoints.restoring(order, args[2], run, lambda: method(*args, **kwargs))
                    result = method(*args, **kwargs)
                    if name == "decide" and args[4] is None:  # else a sink has decided
                        laws.decided(result, args[3])
                    return result

            what = f"store.{name}{_shown(args[1:])}" if kernel.tracing else name
            return kernel.call(what, perform, lost, writes=writes, routine=name in _ROUTINE)

        setattr(self, name, call)
        return call


_READS = """
    pipeline pipelines leases run checkpoint checkpoints open_checkpoints unsettled planned_before first_unproven
    undelivered run_checkpoints last_published confirmed proven prunable position_before referenced_locations
    latest_confirmed last_delivered events now close url open_requests request requests_by failed_in_a_row read_through
    complete_around is_rewound runs spec fillings overtaken_by read_as_of delivered_with barrier barriers
"""
_ROUTINE = ("read_all", "renew_lease")
_METHODS = {name: method for name, method in getmembers(DecisionLog, isfunction) if name[0] != "_"}
_WRITES = frozenset(_METHODS) - frozenset(_READS.split())
_FENCED = frozenset(name for name in _WRITES if list(signature(_METHODS[name]).parameters)[2:3] == ["epoch"])


def _shown(args: tuple[Any, ...]) -> str:
    return f"({', '.join(str(arg) if len(str(arg)) < 40 else type(arg).__name__ for arg in args)})"
