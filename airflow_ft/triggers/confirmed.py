"""Starts DAGs on each confirmed checkpoint of a pipeline: the trigger of an `AssetWatcher`. Reads only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from airflow_ft.pipeline.decision_log import check_store
from airflow_ft.protocol.argument_names import arguments_by_name
from airflow_ft.protocol.arguments import check_type, shown, wrong
from airflow_ft.protocol.config import check_name
from airflow_ft.protocol.errors import (
    ConfigurationError,
    PipelineHaltedError,
    StoreUnavailableError,
    TerminalError,
    require_not_renamed,
)
from airflow_ft.triggers.polling import poll
from airflow_ft.triggers.shared import Watch, reading

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import QueryLog

log = logging.getLogger(__name__)

STATE_KEY = "airflow_ft_reported"
"""First part of the key in Airflow's state store of the newest number for which the watched asset has an event. The
pipeline and the installation of the decision log follow, since the asset may have watchers of several pipelines.
"""


@arguments_by_name
class ConfirmedTrigger(BaseEventTrigger):
    """Fire an event for checkpoints that were confirmed since the previous event, also of a running stream::

        from airflow.sdk import DAG, Asset, AssetWatcher
        from airflow_ft.triggers.confirmed import ConfirmedTrigger

        watcher = AssetWatcher(name="orders", trigger=ConfirmedTrigger(pipeline="orders"))
        with DAG("report", schedule=[Asset("orders-confirmed", watchers=[watcher])]):
            ...

    The event's extra is {"from_trigger": True, "payload": {"pipeline", "number": the newest, "after": that of the
    event before}}. What is confirmed within one `poll_interval` is one event: each number above `after`, up to
    `number`.

    No number is left out, and the newest one is sent at least once. Airflow keeps the number when the event is in its
    database. A triggerer that is killed between the two sends it again after its restart, and a DAG that must not act
    twice compares the numbers. The first event is of the first number that is confirmed after the trigger has started
    for the first time with this pipeline and decision log. Without a triggerer no event fires; its restart covers all
    missed numbers at once. If the pipeline was renamed, the triggerer's log says so.

    Of several events that wait for a run Airflow before 3.4 hands over the first, and the others with the next event
    (https://github.com/apache/airflow/issues/56050). So where a DAG has one run at a time, or `poll_interval` is as
    short as the scheduler's, the newest may wait. A step that must have it asks a `CheckpointSensor`.

    Give the asset a name of its own: `airflow-ft://orders` gets its events from the tasks of the pipeline, and would
    get each twice.

    Args:
        pipeline: the pipeline's name.
        store: as in `airflow_ft.pipeline.decision_log.store_url`.
        poll_interval: seconds between two looks at the decision log.
    """

    def __init__(self, *, pipeline: str, store: str | None = None, poll_interval: float = 10.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        remedy = "Give a number of seconds above 0 as poll_interval."
        check_type("poll_interval", poll_interval, (int, float), remedy)
        if not 0 < poll_interval < float("inf"):
            raise wrong("poll_interval", shown(poll_interval), remedy)
        self.pipeline = check_name("pipeline", pipeline)
        self.store = check_store(store)
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        return (
            "airflow_ft.triggers.confirmed.ConfirmedTrigger",
            {"pipeline": self.pipeline, "store": self.store, "poll_interval": self.poll_interval},
        )

    def shared_stream_key(self) -> tuple[str, str, str, float]:
        """Return a unique key: Airflow acknowledges only events of shared streams, so this is a shared stream with one
        user.
        """
        return ("airflow_ft.confirmed", self.pipeline, self.store or "", self.poll_interval)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """See `Confirmations`."""
        return Confirmations(**kwargs)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each number above those sent; stores acknowledged numbers."""
        key, kept, sent = "", None, None
        async for found in shared_stream:
            number = found["number"]
            before, key = key, f"{STATE_KEY}:{self.pipeline}:{found['log']}"
            if key != before:
                kept = sent = await self._kept(key)
            if found["acknowledged"] or sent is None:
                kept = max(kept or 0, number)
                sent = max(sent or 0, number)
                if self.asset_state_store is not None:
                    await self.asset_state_store.aset(key, kept)
            elif number > sent:
                event = {"pipeline": self.pipeline, "number": number, "after": sent}
                sent = number
                yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def _kept(self, key: str) -> int | None:
        """The newest number of which Airflow has the event; None: this trigger starts for the first time."""
        if self.asset_state_store is None:
            return None
        try:
            kept = await self.asset_state_store.aget(key)
        except ValueError as error:  # it keeps something for each of them, but their names are unknown
            raise ConfigurationError(
                f"several assets watch {self.pipeline} with equal arguments, and Airflow runs one trigger for them.",
                code="arguments_conflict",
                remedy="Schedule all DAGs by one of these assets, or give each watcher another poll_interval.",
                pipeline=self.pipeline,
            ) from error
        return kept if isinstance(kept, int) else None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the same without acknowledgements, for a caller that does not know shared streams."""
        producer = Confirmations(self.pipeline, self.store, self.poll_interval)

        async def stream() -> AsyncIterator[dict[str, Any]]:
            async for found, news in producer.open_stream():
                yield found
                if news is not None:
                    producer.acknowledge(news)

        async for event in self.filter_shared_stream(stream()):
            yield event


class News(NamedTuple):
    """The newest confirmed number in a decision log; 0: none yet."""

    log: str
    number: int


class Confirmations(SharedStreamProducer):
    """The newest confirmed numbers of a pipeline, each followed by its acknowledgement when Airflow has its event.

    Args:
        pipeline: as in `ConfirmedTrigger`.
        store: as there.
        poll_interval: as there.
    """

    def __init__(self, pipeline: str, store: str | None = None, poll_interval: float = 10.0) -> None:
        self.pipeline, self.store, self.poll_interval = pipeline, store, poll_interval
        self._seen: News | None = None
        self._is_renamed = False
        self._watch = Watch((pipeline,))
        self._acknowledged: asyncio.Queue[News] = asyncio.Queue()

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], News | None]]:
        """Return what `filter_shared_stream` reads, with what to acknowledge; None: it is an acknowledgement."""
        look: asyncio.Future[News] | None = None
        acknowledged: asyncio.Future[News] | None = None
        held = ExitStack()
        reader = held.enter_context(reading(self.store))
        try:
            while True:
                look = look or asyncio.ensure_future(poll(self.look, self.poll_interval, log, reader.threads))
                acknowledged = acknowledged or asyncio.ensure_future(self._acknowledged.get())
                await asyncio.wait((look, acknowledged), return_when=asyncio.FIRST_COMPLETED)
                if acknowledged.done():
                    news, acknowledged = acknowledged.result(), None
                    yield {**news._asdict(), "acknowledged": True}, None
                if look.done():
                    self._seen, look = look.result(), None
                    yield {**self._seen._asdict(), "acknowledged": False}, self._seen
        finally:
            held.close()
            for future in (look, acknowledged):
                if future is not None:
                    future.cancel()

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Airflow has the events of these."""
        for payload, outcome in batch:
            if payload is not None and outcome.is_clean:
                self.acknowledge(payload)

    def acknowledge(self, news: News) -> None:
        """Record that it need not be sent again."""
        self._acknowledged.put_nowait(news)

    def look(self) -> News | None:
        """The newest confirmed number, if it is new (0: none yet); one look, in a thread of its own."""
        try:
            return self._watch.look(self.store, self.poll_interval, self._news)
        except TerminalError as error:  # no task would fail by it: log it, and ask again
            raise StoreUnavailableError(error.headline, code=error.code, remedy=error.remedy) from error

    def _news(self, store: QueryLog) -> News | None:
        try:
            latest = store.latest_confirmed(self.pipeline)
            news = News(store.installation, latest.number if latest is not None else 0)
            if news == self._seen:
                self._warn_of_rename(store)
        except KeyError:  # it has not run yet
            news = News(store.installation, 0)
        return news if news != self._seen else None

    def _warn_of_rename(self, store: QueryLog) -> None:
        """Log once that the pipeline was renamed; again if it got its name back in between."""
        try:
            require_not_renamed(store.pipeline(self.pipeline), "Watch the pipeline of the new name.")
            self._is_renamed = False
        except PipelineHaltedError as error:
            if not self._is_renamed:
                log.warning("%s", error)
            self._is_renamed = True
