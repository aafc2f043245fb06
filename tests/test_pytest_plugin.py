"""What the distribution's pytest plugin does to a test session beside its fixture."""

import subprocess
import sys

import pytest

from airflow_ft.testing import plugin

pytestmark = pytest.mark.slow

# Threads parse while the collector runs finalizers, in which Python lets another thread on.
_RACE = """
import ast, gc, inspect, sys, threading
from airflow_ft.protocol import model
from airflow_ft.testing import plugin

class Finalized:
    def __del__(self):
        for _ in range(50):
            pass

def parse():
    for _ in range(30):
        cycle = Finalized()
        cycle.itself = cycle
        del cycle
        try:
            ast.parse(text)
        except SystemError as error:
            failed.append(error)

if "guarded" in sys.argv:
    plugin.pytest_configure()
text, failed = inspect.getsource(model), []
gc.set_threshold(500)
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=parse) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(failed), "failed")
"""


def _failed(*arguments: str) -> int:
    said = subprocess.run([sys.executable, "-c", _RACE, *arguments], capture_output=True, text=True, check=True)
    return int(said.stdout.split()[0])


def test_threads_may_parse_at_once() -> None:
    assert _failed("guarded") == 0


@pytest.mark.skipif(not plugin.PARSES_ONE_AT_A_TIME, reason="this Python keeps a depth for each")
def test_without_the_guard_this_python_cannot() -> None:
    assert _failed() > 0
