"""Why a gate stays closed until a person acts. Sensors and triggers log it, and still wait: the person may act soon."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_ft.protocol.errors import ConfigurationError, NewerReleaseError, StoreCorruptError
from airflow_ft.protocol.explaining import explained
from airflow_ft.protocol.lookup import require_known
from airflow_ft.protocol.overview import Condition

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog

_NEED_A_PERSON = (Condition.HALTED, Condition.QUARANTINED, Condition.FAILED, Condition.NOT_RUNNING)


class Obstacles:
    """Remembers the obstacles of pipelines that it has returned."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def new(self, store: DecisionLog, pipelines: Iterable[str]) -> list[str]:
        """Return the obstacles that have changed since the last call, as texts for a log."""
        found = {name: _obstacle(store, name) for name in pipelines}
        changed = [text for name, text in found.items() if text and text != self._seen.get(name)]
        self._seen = found
        return changed


def _obstacle(store: DecisionLog, pipeline: str) -> str:
    try:
        try:
            overview = store.overview(pipeline)
        except KeyError:
            require_known(store, pipeline)  # its error suggests a similar name, so it reads all pipelines
            return ""  # the pipeline was registered between the two reads
        if overview.condition not in _NEED_A_PERSON:
            return ""
        return f"pipeline {pipeline} is {overview.condition.words}: {explained(store, overview).text}"
    except (ConfigurationError, NewerReleaseError, StoreCorruptError) as error:
        return str(error)
