"""What the protocol demands of a participant, as tests which the author of a sink runs over a real server.

    from airflow_ft.testing import ParticipantConformance, Target

    class TestShelf(ParticipantConformance):
        @pytest.fixture
        def target(self) -> Iterator[Target]:
            ...

Everything is judged by `Target.ids`, which reads the server by a client of its own. A sink whose promise is ATOMIC
carries the commit point; with refused rows it is tried as one that follows, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from airflow_ft.testing.bags import BagsConformance
from airflow_ft.testing.beginnings import BeginningsConformance
from airflow_ft.testing.dead_letters import DeadLettersConformance
from airflow_ft.testing.decisions import DecisionsConformance
from airflow_ft.testing.deliveries import DeliveriesConformance
from airflow_ft.testing.fencing import FencingConformance
from airflow_ft.testing.findings import FindingsConformance
from airflow_ft.testing.histories import HistoriesConformance
from airflow_ft.testing.keys import KeysConformance
from airflow_ft.testing.kills import KillsConformance
from airflow_ft.testing.lost_messages import LostMessagesConformance
from airflow_ft.testing.owners import OwnersConformance
from airflow_ft.testing.parts import PartsConformance
from airflow_ft.testing.upserts import UpsertsConformance
from airflow_ft.testing.value_cases import ValuesConformance
from airflow_ft.testing.world import Target, World
from airflow_ft.testing.zombies import ZombiesConformance


class ParticipantConformance(
    BagsConformance,
    BeginningsConformance,
    DeadLettersConformance,
    DecisionsConformance,
    DeliveriesConformance,
    FencingConformance,
    FindingsConformance,
    HistoriesConformance,
    KeysConformance,
    KillsConformance,
    LostMessagesConformance,
    OwnersConformance,
    PartsConformance,
    UpsertsConformance,
    ValuesConformance,
    ZombiesConformance,
):
    """Subclass it, and give `target`."""

    patience: ClassVar[float] = 10.0
    """Seconds that a successor is given to end beside a process that stands still, before that one goes on."""

    @pytest.fixture
    def target(self) -> Iterator[Target]:
        """A new and empty one for each test."""
        raise NotImplementedError("a subclass gives its target")

    @pytest.fixture
    def world(self, target: Target, tmp_path: Path) -> Iterator[World]:
        made = World(target, tmp_path)
        yield made
        made.close()
