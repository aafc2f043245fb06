"""The hook of the decision log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.hook import BaseHook

from airflow_ft.pipeline.decision_log import open_configured_store

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog


class CheckpointStoreHook(BaseHook):
    """Read access to the decision log in your own tasks::

        with closing(CheckpointStoreHook().get_conn()) as store:
            newest = store.latest_confirmed("orders")

    Args:
        store: as in `store_url`; None: the configured one.
    """

    hook_name = "Fault tolerance"

    def __init__(self, store: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.store = store

    def get_conn(self) -> DecisionLog:
        """The decision log; the caller closes it."""
        return open_configured_store(self.store)
