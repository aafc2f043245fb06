"""What is stored may outlive the release that wrote it: plans, tokens, manifests and savepoints name their format.

A later release reads what an earlier one has written; an earlier one refuses what it does not know, by name, before it
touches anything. What carries no format is of the first one. The tables of a sink's ledger have none of their own: the
decision log that owns them has a version, and a release that does not know it reaches no sink.
"""

from __future__ import annotations

from airflow_ft.core.errors import ConfigurationError


def refuse_newer(what: str, found: object, known: int) -> None:
    """ConfigurationError when `what` is of a later format than this release knows."""
    if isinstance(found, int) and found > known:
        raise ConfigurationError(
            f"{what} is of format {found}, and this airflow-ft knows formats up to {known}.",
            remedy="install the version of airflow-ft that wrote it, or a newer one; nothing was changed.",
        )
