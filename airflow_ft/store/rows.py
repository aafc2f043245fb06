"""Rows of pipelines, runs, leases and events to the values of the protocol and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from airflow_ft.protocol.errors import AirflowFtError, NewerReleaseError, StoreCorruptError
from airflow_ft.protocol.failure import Failure, Halt, halt_remedy, shortened
from airflow_ft.protocol.formats import SENSELESS, is_word
from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.protocol.model import Former, RunKey, SparkPosition, canonical_json
from airflow_ft.protocol.overview import Overview
from airflow_ft.protocol.pipelines import Event, HaltReason, Lease, Pipeline, PipelineStatus, Run
from airflow_ft.protocol.secrets import without_secrets
from airflow_ft.protocol.warning import PipelineWarning
from airflow_ft.store.database import Row

P = ParamSpec("P")
T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
EVENTS_OF_ONE = "SELECT * FROM event WHERE pipeline = ? AND number = ? ORDER BY id DESC LIMIT ?"
_DECODE = json.JSONDecoder().raw_decode
_UNITS = frozenset(Unit)
_SOURCE, _STORED = "job_source", "digest"
_NEWER_REMEDY = (
    "Install the version of airflow-ft that wrote this, or a newer one. Until then nothing here acts on the pipeline."
)


def stored(table: str) -> Callable[[Callable[Concatenate[Row, P], T]], Callable[Concatenate[Row, P], T]]:
    """For what reads a row of this table: StoreCorruptError names the row that cannot be read."""

    def decorate(read: Callable[Concatenate[Row, P], T]) -> Callable[Concatenate[Row, P], T]:
        @wraps(read)
        def converted(row: Row, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return read(row, *args, **kwargs)
            except NewerReleaseError as error:
                raise error.located(**_place(row)) from error.__cause__
            except AirflowFtError:
                raise
            except SENSELESS as error:
                raise StoreCorruptError(
                    f"a row of the table {table} cannot be read ({error!r})", table=table, **_place(row)
                ) from error

        return converted

    return decorate


def _place(row: Row) -> dict[str, Any]:
    return {
        "pipeline": str(row.get("pipeline") or row.get("name") or ""),
        "checkpoint": int(row.get("number") or 0),
    }


def json_object(text: str) -> dict[str, Any]:
    """The inverse of `json_text` for a mapping; ValueError for any other text.

    A page reads thousands, and `json.loads` looks for blanks around each, of which a decision log has none.
    """
    try:
        found, end = _DECODE(text)
    except ValueError:
        end = -1
    if end != len(text):
        found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"{text[:40]!r} is not a JSON object")
    return found


def clean_text(text: str) -> str:
    """The text without what a database cannot hold: NUL, and half characters as in undecodable file names."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\0")


def shown_text(text: str) -> str:
    """Return a text for people as the database keeps it: clean, short, and without secrets.

    Errors of jobs may quote secrets and whole tables.
    """
    return shortened(clean_text(without_secrets(text)))  # after the secrets: the end of one shows what it is


def json_text(value: Any) -> str:
    """Canonical JSON that every database can hold."""
    return clean_text(canonical_json(value))


def to_time(microseconds: int) -> datetime:
    """A stored time; exact, unlike a float of seconds."""
    return _EPOCH + timedelta(0, 0, microseconds)  # by name it takes twice as long, and pages read thousands


def from_time(time: datetime) -> int:
    """The inverse; a time without a zone is refused by the subtraction (TypeError)."""
    # Not `time - _EPOCH`: Airflow hands over times of pendulum, whose differences cannot be divided by a timedelta.
    difference: timedelta = datetime.__sub__(time, _EPOCH)
    return difference // _MICROSECOND


def time_or_none(microseconds: int | None) -> datetime | None:
    """A stored time that may be missing."""
    return None if microseconds is None else to_time(microseconds)


def to_position(location: str | None, batch: int | None) -> SparkPosition | None:
    """The two columns of a position of Spark's."""
    return None if location is None or batch is None else SparkPosition(uri_of(location), batch)


def uri_of(text: str) -> str:
    """A stored URI; ValueError for a text that names no place."""
    if "\0" in text:
        raise ValueError(f"{text[:80]!r} names no place")
    return text


def key_of(run: RunKey) -> tuple[str, str, int]:
    """The three columns of a run's key."""
    return run.dag_id, run.run_id, run.map_index


def run_key(dag_id: str | None, run_id: str | None, map_index: int) -> RunKey | None:
    """The inverse of `key_of`; None: the columns are empty."""
    return None if dag_id is None or run_id is None else RunKey(dag_id, run_id, map_index)


@stored("pipeline")
def to_pipeline(row: Row) -> Pipeline:
    """A row of `pipeline`."""
    newer = _newer(row)
    return Pipeline(
        name=row["name"],
        epoch=row["epoch"],
        next_number=row["next_number"],
        status=PipelineStatus.HALTED if newer else PipelineStatus(row["status"]),
        halt=_halt(row, newer),
        base=to_position(row["base_location"], row["base_batch"]),
        base_is_clean=bool(row["base_clean"]),
        turn=run_key(row["turn_dag_id"], row["turn_run_id"], row["turn_map_index"]),
        last_published=row["published"],
        last_attempt=row["next_attempt"] - 1,
        former=to_former(row),
        renamed_to=row["renamed_to"] or "",
        newer=newer,
    )


@stored("pipeline")
def to_former(row: Row) -> Former | None:
    """Return the pipeline that the pipeline of this row replaces."""
    return None if row["former"] is None else Former(**json.loads(row["former"]))


def _newer(row: Row) -> str:
    """Return what of a row of `pipeline` only a newer release knows ("": nothing); ValueError for what none does."""
    for kind, text in ((PipelineStatus, row["status"]), (HaltReason, row["halt_reason"])):
        if text is not None and text not in kind.__members__:
            if not is_word(text):
                raise ValueError(f"{text!r} is no {kind.__name__}")
            return str(text)
    return ""


@stored("pipeline")
def to_overview(row: Row, now: int) -> Overview:
    """Return what of a row of `pipeline` a list says (`summary.LISTED`); a thousand of these are read at once."""
    first, last = row["first_dag"], row["last_dag"]
    found = Overview(
        row["name"],
        None if row["status"] in ("ACTIVE", "RENAMED") else _halt(row, _newer(row)),
        run_key(row["turn_dag_id"], row["turn_run_id"], row["turn_map_index"]),
        () if first is None else (first,) if first == last else (first, last),
        row["quarantined"],
        row["committing"],
        row["undelivered"],
        renamed_to=row["renamed_to"] or "",
        failure=to_failure(row["failure"]),
        streaming=bool(row["streaming"]),
        retired=bool(row["retired"]),
        leases=row["leases"],
        changed_at=to_time(row["changed_at"]),
        renewed_at=time_or_none(row["renewed_at"]),
        expires_at=time_or_none(row["expires_at"]),
        now=to_time(now),
    )
    if (after := row["late_after"]) is None or (row["late_default"] and found.turn is None):
        return found
    late_at = _since(row, now, after) + after
    return found._replace(
        late=None if now <= late_at else (now - late_at + after) * _MICROSECOND,
        late_after=after * _MICROSECOND,
        late_at=to_time(late_at),
    )


def _halt(row: Row, newer: str) -> Halt | None:
    """Return why a row of `pipeline` is HALTED; None: it is not. `newer`: as `_newer` returns it."""
    if newer:
        return Halt(newer, row["halt_code"], row["halt_message"], _NEWER_REMEDY)
    if row["status"] != PipelineStatus.HALTED.value:
        return None
    remedy = halt_remedy(row["halt_remedy"], row["name"])
    return Halt(HaltReason(row["halt_reason"]).value, row["halt_code"], row["halt_message"], remedy)


@stored("pipeline")
def to_late(row: Row, now: int, after: timedelta) -> timedelta | None:
    """Return for how long nothing was confirmed (`summary.TIMES_OF_ONE`), if that is longer than `after`."""
    since = (now - _since(row, now, after // _MICROSECOND)) * _MICROSECOND
    return since if since > after else None


def _since(row: Row, now: int, after: int) -> int:
    """Return when something was last confirmed, all that there was read, or the pipeline made or restored.

    A time too far in the future does not count: it would silence the pipeline, since the log's clock was ahead.
    """
    read = () if row["undelivered"] else (row["read_at"], row["complete_at"])
    times = [at for at in (row["confirmed_at"], *read) if at is not None and at <= now + after]
    since: int = max([row["created_at"], *times])
    return since


@stored("source_lag")
def to_lag(row: Row) -> Lag:
    """A row of `source_lag`."""
    return Lag(
        source=row["source"],
        unit=Unit(row["unit"]) if row["unit"] in _UNITS else row["unit"],
        behind=row["behind"],
        rate=row["rate"],
        done=row["done"],
        expected=row["expected"],
        at=to_time(row["at"]),
    )


@stored("lease")
def to_lease(row: Row) -> Lease:
    """A row of `lease`."""
    return Lease(
        row["holder"],
        row["epoch"],
        row["task"],
        row["try_number"],
        row["counter"],
        row["doing"],
        row["lease_time"] / 1e6,
    )


@stored("run")
def to_run(row: Row) -> Run:
    """A row of `run`."""
    return Run(
        pipeline=row["pipeline"],
        key=RunKey(row["dag_id"], row["run_id"], row["map_index"]),
        epoch=row["epoch"],
        staged=bool(row["staged"]),
        interval_end=time_or_none(row["interval_end"]),
        stage_task=row["stage_task"],
        stage_began=time_or_none(row["stage_began"]),
        through=row["published_through"],
        complete=bool(row["complete"]),
        spec=row["spec"],
        restored_from=row["restored_from"],
    )


@stored("event")
def to_event(row: Row) -> Event:
    """A row of `event`."""
    return Event(
        pipeline=row["pipeline"],
        number=row["number"],
        at=to_time(row["at"]),
        epoch=row["epoch"],
        kind=row["kind"],
        message=row["message"],
        detail=json_object(row["detail"]),
    )


def texts_of_spec(spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the texts to store for a specification, each behind its digest. The last one names the others.

    The source of the job has a text of its own: it is long, and the same where other values differ from run to run.
    """
    if not isinstance(spec.get(_SOURCE), str):
        return [_with_digest(spec)]
    source = _with_digest({_SOURCE: spec[_SOURCE]})
    return [source, _with_digest({**spec, _SOURCE: {_STORED: source[0]}})]


def _with_digest(value: Mapping[str, Any]) -> tuple[str, str]:
    text = json_text(value)
    return hashlib.sha256(text.encode()).hexdigest(), text


def digest_of_source(spec: Mapping[str, Any]) -> str:
    """Return under which digest the source of the job of a stored specification is; "": it is not apart."""
    found = spec.get(_SOURCE)
    return str(found[_STORED]) if isinstance(found, Mapping) else ""


@stored("spec")
def spec_of(row: Row) -> Mapping[str, Any]:
    """A row of `spec`."""
    return json_object(row["text"])


def to_failure(text: str | None) -> Failure | None:
    """A failure as `pipeline` and `vote` hold it."""
    return None if text is None else Failure.from_json(json_object(text))


@stored("pipeline_warning")
def to_warning(row: Row) -> PipelineWarning:
    """A row of `pipeline_warning`."""
    return PipelineWarning(row["code"], row["subject"], row["message"], row["remedy"], to_time(row["at"]))
