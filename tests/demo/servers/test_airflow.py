"""Airflow as the demonstration starts it."""

from pathlib import Path

import pytest

from tools.demo.airflow import Airflow, AirflowError

pytestmark = pytest.mark.airflow


class Components(Airflow):
    """One that waits for its database, which nobody makes, and one that ends at once."""

    command_line = ("db", "check-migrations", "--migration-wait-timeout=600")

    def start(self) -> None:
        super().start()
        self._spawn("no-such-component")


def test_a_component_that_ends_at_startup_is_named_at_once(tmp_path: Path) -> None:
    airflow = Components(tmp_path / "home", {}, {})
    try:
        airflow.start()
        with pytest.raises(AirflowError) as ended:
            airflow.wait_until_ready("flights")
        assert "no-such-component.log" in ended.value.args[0]
    finally:
        airflow.stop()
    assert "invalid choice" in (airflow.home / "no-such-component.log").read_text()
