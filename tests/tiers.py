"""Which tests run, and in which order: tiers, matrices that rotate, groups that stay together, the long ones first.

| tier | runs |
| --- | --- |
| `make test`, before a change goes in | all but what is marked `release`; a part of each matrix |
| `make test-all`, before a release | everything |

A matrix is a test function of `tests/integration` with several cases (servers, strategies, places to die), or what is
marked: a function or a whole file by `rotating`, functions of a file together by `rotating("of what")`, those of
several files by `rotating(among="what")`. A twelfth of each runs; half of that of the dearest (`HALVED`), and a third
of what rotates among `THIRDS`. The hash of the committed files chooses the part: the same files run the same tests in
every clone, deep or shallow. ROTATION=0 to 23 chooses it by hand, and 24 parts are everything. Cases are counted in
the order of collection, so that neighbours (the same place to die, on the other server) fall into different parts,
unless they share what is dearer than they are; of few cases there is always one.

Named tests always run, of any tier: files and folders on the command line, `-k` and `-m`. An explicit ROTATION keeps
the tiers for files, folders and `-m`.

Several workers take groups of tests, the longest first. A group is a file; a file that takes long is divided into its
tests, unless they share something dear (a fixture of the module, Spark's session, a browser). What a file takes is in
`durations.json`, which `make durations` measures anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

TWELFTHS = 12
HALVED = {"Spark drivers", "Airflow", "HDFS"}
"""A twelfth of each of these would be a sixth of all that `make test` does: so half of one runs."""
THIRDS = {"the page", "slow checks"}
"""One third of these runs: each test shows something of its own, and all of them together take too long."""
PARTS = 2 * TWELFTHS
"""Together they are everything."""
MATRICES = "tests/integration/"
"""Where every test with several cases is one."""
DIVIDED = 10.0
"""Seconds that a file may take as a whole; one that takes longer is divided."""
RECORDED = Path(__file__).with_name("durations.json")
UNMEASURED = {"airflow": 40.0, "spark": 20.0, "chaos": 10.0, "slow": 10.0, "server": 1.0}
"""Seconds of a test whose file was not measured yet, by its marks."""
SHARED = {"spark": "Spark's session", "chromium": "the browser"}
"""Fixture that files share -> the group of all tests that use it, or what is made of it."""
TOGETHER = {"HDFS"}
"""What rotates among these is one group, too, so that one worker starts the server, and not each."""
NEIGHBOURS = {"Airflow", "the page"}
"""Neighbours among these fall into one part: they share an Airflow."""


def add_options(parser: pytest.Parser) -> None:
    """`--all`, and where durations are written to."""
    group = parser.getgroup("airflow-ft")
    group.addoption("--all", action="store_true", help="also what is marked `release`, and whole matrices")
    group.addoption("--record", action="store_true", help=f"write what files take into {RECORDED.name}")


class Tiers:
    """The plugin; see the module."""

    def __init__(self, config: pytest.Config) -> None:
        self.whole = bool(config.getoption("--all"))
        self.turn = turn()
        self._records = bool(config.getoption("--record")) and not hasattr(config, "workerinput")
        self._seconds: Counter[str] = Counter()
        self._groups = Path(tempfile.gettempdir()) / f"airflow-ft-groups-{os.getpid()}.json"

    def pytest_report_header(self) -> str:
        if self.whole:
            return "tier: all tests"
        return f"tier: without `release`, a part of rotating matrices (ROTATION={self.turn})"

    @pytest.hookimpl(trylast=True)  # when pytest has put tests with the same fixtures together
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if not self.whole and not is_named(config):
            left_out = set(out_of_turn(items, self.turn))
            left_out.update(item for item in items if item.get_closest_marker("release"))
            if left_out:
                config.hook.pytest_deselected(items=[item for item in items if item in left_out])
                items[:] = [item for item in items if item not in left_out]
        if (worker := getattr(config, "workerinput", None)) is not None:
            groups = order(items, recorded())
            fresh = Path(worker["groups"]).with_suffix(f".{worker['workerid']}")
            fresh.write_text(json.dumps({item.nodeid: group for item, group in groups.items()}))
            fresh.replace(worker["groups"])  # all workers find the same

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["groups"] = str(self._groups)
        node.workerinput["paths_named"] = _names_paths(node.config)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from xdist.scheduler import LoadScopeScheduling

        class ByGroup(LoadScopeScheduling):
            """Keeps the tests of a group on one worker. Marks of xdist's own `loadgroup` need pytest before 9.2."""

            @cached_property
            def groups(self) -> dict[str, str]:
                return dict(json.loads(groups.read_text()))

            def _split_scope(self, nodeid: str) -> str:
                return self.groups[nodeid]

        groups = self._groups
        return ByGroup(config, log)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._groups.unlink(missing_ok=True)
        if self._records and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            lasting = {file: round(seconds) for file, seconds in self._seconds.items() if seconds >= 1}
            RECORDED.write_text(json.dumps(lasting, indent=0, sort_keys=True) + "\n")


def turn() -> int:
    """The part to run, 0 to 23: ROTATION, otherwise chosen by `content_number`."""
    return int(os.environ.get("ROTATION") or content_number()) % PARTS


def content_number(folder: Path = Path(__file__).parent) -> int:
    """A number below 2**32 made from the hash of the committed files; 0 outside a repository.

    It depends neither on the history nor on the commit message, so a shallow clone and a rebased commit have the same.
    """
    asking = ["git", "rev-parse", "HEAD^{tree}"]
    asked = subprocess.run(asking, cwd=folder, capture_output=True, text=True, check=False)
    return int(asked.stdout[:8], 16) if asked.returncode == 0 else 0


def out_of_turn(items: Iterable[pytest.Item], turn: int) -> list[pytest.Item]:
    """The cases of matrices that are not of this turn."""
    matrices: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        function = item.nodeid.partition("[")[0]
        own = next((mark for mark in item.own_markers if mark.name == "rotating"), None)
        closest = own or item.get_closest_marker("rotating")
        if closest is not None and "among" in closest.kwargs:
            name = closest.kwargs["among"]
        elif own is not None:
            name = " ".join([_file(item), *own.args]) if own.args else function
        elif item.get_closest_marker("rotating") is not None:
            name = _file(item)
        elif function.startswith(MATRICES):
            name = function
        else:
            continue
        matrices[name].append(item)
    left_out = []
    for name, cases in matrices.items():
        parts = 3 if name in THIRDS else PARTS if name in HALVED else TWELFTHS
        count = min(parts, len(cases))
        left_out += [
            case for number, case in enumerate(cases) if _part(name, number, cases, count) != turn % parts % count
        ]
    return left_out


def _part(name: str, number: int, cases: list[pytest.Item], count: int) -> int:
    """Which of the `count` parts of a matrix has the case of this number."""
    return number * count // len(cases) if name in NEIGHBOURS else number % count


def is_named(config: pytest.Config) -> bool:
    """Return whether the command line names the tests, so that all of them run."""
    if any("::" in argument for argument in config.args) or config.getoption("-k"):
        return True
    return _names_paths(config) and not os.environ.get("ROTATION")


def _names_paths(config: pytest.Config) -> bool:
    """Return whether files, folders or marks are named. A worker of xdist cannot see it, so the controller tells it."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None:
        return bool(worker["paths_named"])
    return config.args_source is pytest.Config.ArgsSource.ARGS or bool(config.getoption("-m"))


# --- order ------------------------------------------------------------------------------------------------------------


def recorded() -> dict[str, float]:
    """Seconds by file, as they were measured."""
    return dict(json.loads(RECORDED.read_text())) if RECORDED.exists() else {}


def order(items: list[pytest.Item], seconds: dict[str, float]) -> dict[pytest.Item, str]:
    """Puts the longest groups first; the order in a group stays. Returns the group of each test."""
    together = {_file(item) for item in items if _shares(item)}
    tests = Counter(_file(item) for item in items)
    cost: Counter[str] = Counter()
    group_of: dict[pytest.Item, str] = {}
    for item in items:
        file = _file(item)
        whole = seconds.get(file, tests[file] * _guess(item))
        shared = next((SHARED[name] for name in SHARED if name in getattr(item, "fixturenames", ())), _together(item))
        if shared:
            group = shared
        elif file in together or whole <= DIVIDED:
            group = file
        else:
            group = item.nodeid
        cost[group] += whole / tests[file]
        group_of[item] = group
    items.sort(key=lambda item: -cost[group_of[item]])  # stable
    return group_of


def _guess(item: pytest.Item) -> float:
    return max((seconds for mark, seconds in UNMEASURED.items() if item.get_closest_marker(mark)), default=0.05)


def _together(item: pytest.Item) -> str:
    """The group of what rotates among others and shares a server with them; "" for all else."""
    mark = item.get_closest_marker("rotating")
    among: str = mark.kwargs.get("among", "") if mark is not None else ""
    return among if among in TOGETHER else ""


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _shares(item: pytest.Item) -> bool:
    """Whether it uses a fixture of its own module that lives longer than a test."""
    names: Iterable[str] = getattr(item, "fixturenames", ())
    manager = item.session._fixturemanager
    for name in names:
        for found in manager.getfixturedefs(name, item) or ():
            if found.scope == "module":
                return True
    return False
