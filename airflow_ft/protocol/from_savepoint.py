"""Settings for a run that starts from a savepoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from airflow_ft.protocol.argument_names import arguments_by_name
from airflow_ft.protocol.arguments import check_place, check_type, is_template, shown, truth, wrong
from airflow_ft.protocol.errors import ConfigurationError

BEGINNING = "beginning"
"""In place of a savepoint's path: a full refresh, from before the first row (see `spark.savepoints.beginning`)."""
_LEGACY = "LEGACY"


class Later(StrEnum):
    """Handling of checkpoints that were confirmed after the savepoint, whose rows are in the sinks."""

    REFUSE = "refuse"
    """Nothing is restored while there are such."""
    CONTINUE = "continue"
    """They stay as they are. Their micro-batches are computed again only for the state, and not delivered again."""
    WRITE_AGAIN = "write-again"
    """Their input is read again, and the job's rows are delivered beside those in the sinks."""


class ClaimMode(StrEnum):
    """Ownership of the savepoint after the restore (Flink's `RestoreMode`)."""

    NO_CLAIM = "NO_CLAIM"
    """It stays as it is; the pipeline works in a copy of its own."""
    CLAIM = "CLAIM"
    """It is deleted once the pipeline has its copy."""


@arguments_by_name
@dataclass(frozen=True, slots=True)
class FromSavepoint:
    """The savepoint that a run starts from, once: its retries, and the run when it is cleared, do not restore again.

    Args:
        path: folder of the savepoint (an absolute path or a URI); empty: continue from the pipeline's own state;
            "beginning": read everything again from where the sources begin.
        later: handling of checkpoints that were delivered after the savepoint: "refuse", "continue" or "write-again"
            (`Later`).
        claim_mode: NO_CLAIM or CLAIM.
        allow_non_restored_state: drop the state of operators that the job no longer has.
        rename: give the savepoint's pipeline this pipeline's name. No run starts under its old name afterwards.
        allow_changed_state: the job may change the meaning of the state (other keys, functions or settings).

    Each may be Jinja.
    """

    path: str
    later: str = Later.REFUSE.value
    claim_mode: str = ClaimMode.NO_CLAIM.value
    allow_non_restored_state: bool | str = False
    rename: bool | str = False
    allow_changed_state: bool | str = False

    def __post_init__(self) -> None:
        example = 'Give the path of a savepoint, such as "/mnt/savepoints/savepoint-orders-17-1f0c2a9b".'
        check_type("from_savepoint.path", self.path, str, example)
        if self.path.startswith(BEGINNING) and not is_template(self.path) and self.path.strip() != BEGINNING:
            raise ConfigurationError(
                f"a full refresh reads everything again, but the run also gives the savepoint"
                f" {self.path.removeprefix(BEGINNING)}.",
                code="arguments_conflict",
                remedy=f"Leave out {FULL_REFRESH} or the savepoint.",
                arguments=[FULL_REFRESH, "savepoint"],
            )
        if self.is_given and not self.is_beginning:
            check_place("from_savepoint.path", self.path.strip())
        for name, check in (("later", later), ("claim_mode", claim_mode)):
            if not is_template(value := getattr(self, name)):
                check(value)
        for name in ("allow_non_restored_state", "rename", "allow_changed_state"):
            if not is_template(value := getattr(self, name)):
                truth(name, value)

    @classmethod
    def from_params(cls) -> FromSavepoint:
        """By the parameters of a DAG run: those of `airflow_ft.savepoint_params`."""
        path, *others = (f"params.get({name!r}, {default!r})" for name, default in PARAMS.items())
        path = f"({BEGINNING!r} if params.get({FULL_REFRESH!r}) else '') ~ ({path} or '')"
        return cls(*(f"{{{{ {param} }}}}" for param in (path, *others)))

    @classmethod
    def of(cls, given: FromSavepoint | Mapping[str, Any] | str | None) -> FromSavepoint | None:
        """Out of what an author may give; None: no savepoint. ConfigurationError for anything else."""
        if isinstance(given, FromSavepoint):
            return given
        if given is None or isinstance(given, str):
            return cls(given) if given else None
        if isinstance(given, Mapping) and "path" in given and set(given) <= set(cls.__slots__):
            return cls(**{name: "" if name == "path" and value is None else value for name, value in given.items()})
        raise wrong(
            "from_savepoint",
            shown(given),
            'Give the path of a savepoint, FromSavepoint("/path", later="refuse"), or a dictionary with path.',
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_given(self) -> bool:
        """Return whether a savepoint is named; call it after rendering."""
        return is_given(self.to_json())

    @property
    def is_beginning(self) -> bool:
        """Return whether the run is a full refresh; call it after rendering."""
        return self.path.strip() == BEGINNING

    @property
    def may_leave_state(self) -> bool:
        """`allow_non_restored_state`, when nothing is Jinja any more."""
        return truth("allow_non_restored_state", self.allow_non_restored_state)

    @property
    def renames(self) -> bool:
        """`rename`, when nothing is Jinja any more."""
        return truth("rename", self.rename)

    @property
    def may_change_state(self) -> bool:
        """`allow_changed_state`, when nothing is Jinja any more."""
        return truth("allow_changed_state", self.allow_changed_state)


FULL_REFRESH = "full_refresh"
"""The field of the trigger form that is as good as the path `BEGINNING`."""
PARAMS: dict[str, Any] = {  # by the fields of `FromSavepoint`, in their order
    "savepoint": "",
    "savepoint_later": Later.REFUSE.value,
    "savepoint_claim_mode": ClaimMode.NO_CLAIM.value,
    "allow_non_restored_state": False,
    "savepoint_rename": False,
    "allow_changed_state": False,
}


def later(name: str) -> Later:
    """By its name; ConfigurationError."""
    try:
        return Later(name)
    except ValueError:
        raise wrong(
            "later",
            repr(name),
            f"Give one of {', '.join(Later)}.",
            why=". It says what happens to checkpoints delivered after the savepoint",
        ) from None


def claim_mode(name: str) -> ClaimMode:
    """By Flink's name; ConfigurationError, with advice for LEGACY."""
    if str(name).upper() == _LEGACY:
        raise wrong(
            "claim_mode",
            repr(name),
            "Give NO_CLAIM to keep the savepoint, or CLAIM to delete it once it is restored.",
            what="claim mode LEGACY is not supported, because it does not say who deletes the savepoint.",
        )
    try:
        return ClaimMode(str(name).upper())
    except ValueError:
        raise wrong("claim_mode", repr(name), f"Give one of {', '.join(ClaimMode)}.") from None


def is_given(plain: Any) -> bool:
    """Return whether rendered, plain data of a `FromSavepoint` names a savepoint, valid or not."""
    path = plain.get("path") if isinstance(plain, Mapping) else plain
    return str(path or "").strip() not in ("", "None")
