"""What a list says of each pipeline, beside what the tables say: by one statement, so that both are of one moment."""

from __future__ import annotations

from typing import Any

from airflow_ft.store.database import Database

_CHECKPOINTS = "FROM checkpoint WHERE pipeline = name AND"
_OF_DAGS = (
    "SELECT {}(dag_id) FROM (SELECT pipeline, dag_id FROM checkpoint UNION ALL SELECT pipeline, dag_id FROM run"
    " WHERE restored_from = '' OR epoch > 0) AS m WHERE pipeline = name"
)
_SUMMARY = {
    "quarantined": f"SELECT count(*) {_CHECKPOINTS} state = 'QUARANTINED'",
    "committing": f"SELECT count(*) {_CHECKPOINTS} state = 'COMMITTING'",
    "undelivered": f"SELECT count(*) {_CHECKPOINTS} segment_digest IS NOT NULL AND delivered_by IS NULL"
    " AND COALESCE(after_abort, '') <> 'rewound'",
    "first_dag": _OF_DAGS.format("min"),
    "last_dag": _OF_DAGS.format("max"),
}
# Where the pipeline may be late.
_TIMES = {
    "confirmed_at": f"SELECT completed_at {_CHECKPOINTS} number = (SELECT max(number) {_CHECKPOINTS}"
    " state = 'COMPLETED')",
    "read_at": "SELECT max(read_as_of) FROM run WHERE pipeline = name",
    "complete_at": "SELECT max(stage_began) FROM run WHERE pipeline = name AND complete = 1",
}
# Events of a whole pipeline are never forgotten. Of a HALTED one, or a RENAMED one, another reason is only logged.
_LAST = "SELECT kind FROM event WHERE pipeline = name AND kind IN ('{}', 'RESUMED') ORDER BY id DESC LIMIT 1"
_STATUS = {"renamed": _LAST.format("RENAMED"), "halted": _LAST.format("HALTED")}
_BOTH = "SELECT pipeline.*, {} FROM pipeline ORDER BY name".format(
    ", ".join(f"({query}) AS stored_{name}" for name, query in (_SUMMARY | _TIMES | _STATUS).items())
)


def differences(database: Database) -> list[str]:
    """What is kept of a pipeline and is not what its tables say; [] as long as all is well."""
    return [each for row in database.read(_BOTH) for each in _of(row)]


def _of(row: dict[str, Any]) -> list[str]:
    descriptions = {
        name: row[f"stored_{name}"] for name in _SUMMARY | (_TIMES if row["late_after"] is not None else {})
    }
    kept = {name: row[name] for name in descriptions}
    kept["status"] = row["status"]
    kinds = {row["stored_renamed"], row["stored_halted"]}
    descriptions["status"] = next((status for status in ("RENAMED", "HALTED") if status in kinds), "ACTIVE")
    return [
        f"{row['name']}: {name} is {kept[name]!r}, not {descriptions[name]!r}"
        for name in descriptions
        if kept[name] != descriptions[name]
    ]
