"""Read where other pipelines deliver, before a pipeline delivers into a place for the first time."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from airflow_ft.protocol.formats import SENSELESS
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.pipelines import Filling
from airflow_ft.store.database import Database

log = logging.getLogger(__name__)

# Each pipeline's newest plan for each participant that it ever delivered into, its newest one that is COMPLETED (of
# participants that keep no marker), and what is planned. Each is a look-up of some rows a pipeline.
_FILLINGS = """
SELECT p.name AS pipeline, p.status AS status, p.first_dag AS first_dag, p.last_dag AS last_dag, d.number AS number,
    (SELECT plan FROM checkpoint WHERE pipeline = d.pipeline AND number = d.number) AS plan
FROM pipeline AS p JOIN delivery AS d ON d.pipeline = p.name WHERE p.name <> ?
UNION ALL
SELECT p.name, p.status, p.first_dag, p.last_dag,
    (SELECT number FROM checkpoint WHERE pipeline = p.name AND state = 'COMPLETED' ORDER BY number DESC LIMIT 1),
    (SELECT plan FROM checkpoint WHERE pipeline = p.name AND state = 'COMPLETED' ORDER BY number DESC LIMIT 1)
FROM pipeline AS p WHERE p.name <> ?
UNION ALL
SELECT p.name, p.status, p.first_dag, p.last_dag, 0, c.plan
FROM pipeline AS p JOIN checkpoint AS c ON c.pipeline = p.name AND c.is_open = 1
WHERE p.name <> ? AND c.plan IS NOT NULL AND c.state IN ('STAGED', 'PREPARED', 'COMMITTING', 'QUARANTINED')
"""


class SharingOperations:
    """The part of the store that knows where other pipelines deliver."""

    _database: Database

    def fillings(self, pipeline: str) -> Sequence[Filling]:
        """See `TargetLog.fillings`."""
        found = []
        for row in self._database.read(_FILLINGS, *[pipeline] * 3):
            if row["plan"] is None:  # nothing is COMPLETED yet
                continue
            try:
                participants = tuple(map(ParticipantPlan.from_json, json.loads(row["plan"])["participants"]))
            except SENSELESS as error:  # damaged, or of a newer release: it says so where it is delivered
                log.warning(
                    "A plan of pipeline %s cannot be read (%r): its targets are not compared.", row["pipeline"], error
                )
                continue
            dags = frozenset((row["first_dag"], row["last_dag"])) - {None}
            found.append(Filling(row["pipeline"], row["status"], int(row["number"]), participants, dags))
        return found
