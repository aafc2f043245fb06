"""Warnings about options of `[airflow_ft]` that nothing reads. Airflow ignores them without a warning."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache

from airflow_ft.pipeline.settings import SECTION
from airflow_ft.protocol.failure import with_fix
from airflow_ft.provider_info import get_provider_info

_VARIABLE = f"AIRFLOW__{SECTION.upper()}__"
_CLOSE = 3
CODE = "setting_unknown"

log = logging.getLogger(__name__)


def unknown_options() -> dict[str, tuple[str, str]]:
    """Return the text and the fix for each option of `[airflow_ft]` that nothing reads, by its name."""
    from airflow.sdk.configuration import conf

    known = get_provider_info()["config"][SECTION]["options"]
    # Airflow reads a sensitive option also from a command or a secret.
    sensitive = [name for name, option in known.items() if option.get("sensitive")]
    read = {*known, *(f"{name}_{how}" for name in sensitive for how in ("cmd", "secret"))}
    # Names only: reading values would run commands and ask for secrets.
    given = {name.lower() for name in (conf.options(SECTION) if conf.has_section(SECTION) else ())}
    given |= {name.removeprefix(_VARIABLE).lower() for name in os.environ if name.startswith(_VARIABLE)}
    return {name: _warning(name, get_close_matches(name, known, _CLOSE, 0)) for name in sorted(given - read)}


def _warning(name: str, close: Sequence[str]) -> tuple[str, str]:
    return (
        f"[{SECTION}] has no option {name!r}, so its value is ignored",
        f"Correct or remove it in airflow.cfg, or the variable {_VARIABLE}{name.upper()}. The closest options:"
        f" {', '.join(close)}.",
    )


@cache
def warn_of_unknown_options() -> None:
    """Log each option that nothing reads, once a process."""
    for text, remedy in unknown_options().values():
        log.warning("%s", with_fix(f"{text}. [{CODE}]", remedy))
