"""The error of a driver that ended without a report of its own."""

from __future__ import annotations

import signal
from typing import Any

from airflow_ft.spark.task.symptoms import Symptoms


def _how_it_ended(code: int, *, was_killed: bool = False) -> tuple[str, dict[str, Any]]:
    """Return how a process ended, for people and as fields of an error. `was_killed`: on request.

    `code`: the exit code; negative: the signal.
    """
    number = -code if code < 0 else code - 128
    fields: dict[str, Any] = {"exit_code": code}
    try:
        name = fields["signal"] = signal.Signals(number).name
    except ValueError:
        return f"ended with exit code {code} before it reported a result", fields
    if was_killed:
        return "was stopped on request", fields
    how = f"was killed by {name}"
    return how + (" (perhaps the machine is out of memory)" if number == signal.SIGKILL else ""), fields


def driver_died(driver: str, code: int, symptoms: Symptoms, remedy: str, *, was_killed: bool = False) -> dict[str, Any]:
    """Return the StageError of a driver's death as plain data. `remedy`: used if its output names no better one."""
    how, fields = _how_it_ended(code, was_killed=was_killed)
    return {
        "type": "StageError",
        "what": f"{driver} {how}" + (f": {symptoms.what}." if symptoms.what else "."),
        "code": symptoms.code or "driver_ended",
        "fields": fields,
        "remedy": symptoms.remedy or remedy,
    }
