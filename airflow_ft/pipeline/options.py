"""Options of `[airflow_ft]` that nothing reads: Airflow passes over them in silence."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache

from airflow_ft.pipeline.settings import SECTION
from airflow_ft.provider_info import get_provider_info

_VARIABLE = f"AIRFLOW__{SECTION.upper()}__"
_CLOSE = 3

log = logging.getLogger(__name__)


def unknown_options() -> dict[str, list[str]]:
    """Return the options of `[airflow_ft]` that nothing reads, each with the three closest known names."""
    from airflow.sdk.configuration import conf

    known = get_provider_info()["config"][SECTION]["options"]
    # Airflow itself reads a command or the name of a secret for an option; a former option is refused where it counts.
    read = {*known, *(f"{name}_{how}" for name in known for how in ("cmd", "secret")), "quarantine_after"}
    # By name alone: to read values would run commands and ask for secrets.
    given = {name.lower() for name in (conf.options(SECTION) if conf.has_section(SECTION) else ())}
    given |= {name.removeprefix(_VARIABLE).lower() for name in os.environ if name.startswith(_VARIABLE)}
    return {name: get_close_matches(name, known, _CLOSE, 0) for name in sorted(given - read)}


def unknown_text(name: str) -> str:
    """Return what to say of an option that nothing reads."""
    return f"[{SECTION}] has no option {name!r}, so its value is ignored"


def unknown_remedy(name: str, close: Sequence[str]) -> str:
    """Return what to do about it."""
    return (
        f"Correct or remove it in airflow.cfg, or the variable {_VARIABLE}{name.upper()}. The closest options:"
        f" {', '.join(close)}."
    )


@cache
def warn_of_unknown_options() -> None:
    """Log each option that nothing reads, once a process."""
    for name, close in unknown_options().items():
        log.warning("%s. [setting_unknown]\nFix: %s", unknown_text(name), unknown_remedy(name, close))
