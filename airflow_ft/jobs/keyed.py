"""Keyed state for jobs: Flink's reducing and aggregating state, over the value state of Spark's transformWithState.

For `init` of a StatefulProcessor, in both forms (`transformWithState` and `transformWithStateInPandas`). Values in the
state are tuples of the columns of `schema`, as everywhere in Spark's API. Value, list and map state with their time to
live need nothing of ours: `handle.getValueState`, `getListState`, `getMapState`.

Each look at the state, and each change, is a call from Python to the JVM. So `add_all` adds many rows of a key
together: one call to read and one to write for any number of rows.

It imports no pyspark: processors are made in the driver, and run in Python workers, which have to find this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.arguments import standard_time
from airflow_ft.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, ValueState
    from pyspark.sql.types import StructType

__all__ = ["AggregatingState", "ReducingState"]


class ReducingState:
    """One value for each key that combines values of its own kind: a sum, a maximum, the newest row.

    `reduce(value, other)` gives the value of both; it must not depend on how values are grouped. `ttl`: lifetime of a
    value after the last addition; it needs the time mode "processingTime". Raises ConfigurationError.
    """

    def __init__(
        self,
        handle: StatefulProcessorHandle,
        name: str,
        schema: StructType | str,
        reduce: Callable[[Any, Any], tuple[Any, ...]],
        ttl: timedelta | None = None,
    ) -> None:
        self._value = _Value(handle, name, schema, ttl)
        self._reduce = reduce

    def get(self) -> tuple[Any, ...] | None:
        """Return what was added so far; None: nothing, or it has expired."""
        return self._value.get()

    def add(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """One value more; what the state is then."""
        return self._value.put(self._folded(value, self._value.get()), "reduce")

    def add_all(self, values: Iterable[tuple[Any, ...]]) -> tuple[Any, ...] | None:
        """Many values more, in their order; what the state is then. Without values nothing is changed."""
        given = list(values)
        found = self._value.get()
        for value in given:
            found = self._folded(value, found)
        return self._value.put(found, "reduce") if given else found

    def clear(self) -> None:
        """Forgets it."""
        self._value.clear()

    def _folded(self, value: tuple[Any, ...], found: tuple[Any, ...] | None) -> tuple[Any, ...]:
        return value if found is None else self._reduce(found, value)


class AggregatingState:
    """One accumulator for each key, into which values of another kind are added, and a result that is read from it.

    The state holds the accumulator, with the columns of `schema`: `create()` gives the first one, `add(accumulator,
    value)` the next, and `result(accumulator)` what `get` returns. `ttl` as of `ReducingState`. Flink's `merge` has no
    place here: it is for windows that become one, which Spark merges by itself. Raises ConfigurationError.
    """

    def __init__(
        self,
        handle: StatefulProcessorHandle,
        name: str,
        schema: StructType | str,
        create: Callable[[], tuple[Any, ...]],
        add: Callable[[Any, Any], tuple[Any, ...]],
        result: Callable[[Any], Any],
        ttl: timedelta | None = None,
    ) -> None:
        self._value = _Value(handle, name, schema, ttl)
        self._create, self._add, self._result = create, add, result

    def get(self) -> Any:
        """The result of what was added so far; None: nothing was, or it has expired."""
        found = self._value.get()
        return None if found is None else self._result(found)

    def add(self, value: Any) -> Any:
        """One value more; the result then."""
        return self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> Any:
        """Many values more, in their order; the result then. Without values nothing is changed."""
        given = list(values)
        found = self._value.get()
        for value in given:
            found = self._add(self._create() if found is None else found, value)
        if given:
            self._value.put(found, "add")
        return None if found is None else self._result(found)

    def clear(self) -> None:
        """Forgets it."""
        self._value.clear()


class _Value:
    """Spark's value state, which says what is wrong with a value before Spark's encoder meets it."""

    def __init__(
        self, handle: StatefulProcessorHandle, name: str, schema: StructType | str, ttl: timedelta | None
    ) -> None:
        if ttl is not None and ttl < timedelta(milliseconds=1):
            raise ConfigurationError(
                f"ttl of state {name!r} is {ttl}.",
                code="argument_invalid",
                remedy="Give a timedelta of at least one millisecond, or None to keep the state.",
                argument="ttl",
                value=str(ttl),
                state=name,
            )
        self._name, self._schema = name, schema
        milliseconds = None if ttl is None else standard_time(ttl) // timedelta(milliseconds=1)
        self._state: ValueState = handle.getValueState(name, schema, milliseconds)

    def get(self) -> tuple[Any, ...] | None:
        return self._state.get()

    def put(self, value: Any, function: str) -> tuple[Any, ...]:
        if not isinstance(value, tuple):
            raise ConfigurationError(
                f"{function} of state {self._name!r} returned {type(value).__name__}, which is not a tuple.",
                code="result_invalid",
                remedy=f"Return a tuple of its columns ({self._schema}). For one column that is (x,).",
                function=function,
                state=self._name,
                value=type(value).__name__,
            )
        self._state.update(value)
        return value

    def clear(self) -> None:
        self._state.clear()
