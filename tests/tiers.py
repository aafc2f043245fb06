"""Which tests run, and in which order: the fixed set, groups that stay together, the long ones first.

| command | runs |
| --- | --- |
| `make test`, before a change goes in | the fixed set: always the same tests |
| `make test PART=5` | the fixed set, and one of `PARTS` parts of what it leaves out |
| `make test-all`, before a release | everything |

The fixed set leaves out tests marked `release`, and takes a sample of the others that cost much:

- Of a *matrix* it takes one of 48 cases, and at least one. A matrix is a test function of `tests/integration` with
  several cases (servers, strategies, places to die), or what is marked: a function or a whole file by `sampled`,
  functions of a file together by `sampled("of what")`. A hash of the case's name chooses, so a new case moves no other.
  `sampled(one_in=6)` takes one of 6 cases: for cases that find different faults, and together take only seconds.
- Of a *group*, marked by `sampled(among="what")`, it takes the tests that `tests/fixed_set.txt` names.

Named tests always run: files and folders on the command line, `-k` and `-m`; not with `--fixed-set`.

Several workers take groups of tests, the longest first. A group is a file; a file that takes long is divided into its
tests, unless they share something dear (a fixture of the module, Spark's session, a browser). What a file takes is in
`durations.json`, which `make durations` measures.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence, Set
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

SAMPLE = 48
"""The fixed set has one of this many cases of a matrix, and at least one."""
CALLS = 24
"""Without --all the conformance kit strikes at one of this many calls."""
PARTS = 24
"""Into so many parts PART divides what the fixed set leaves out."""
FIXED_SET = Path(__file__).with_name("fixed_set.txt")
MATRICES = "tests/integration/"
"""Where every test with several cases is a matrix."""
DIVIDED = 10.0
"""Seconds that a file may take as a whole; one that takes longer is divided."""
RECORDED = Path(__file__).with_name("durations.json")
UNMEASURED = {"airflow": 40.0, "spark": 20.0, "chaos": 10.0, "slow": 10.0, "server": 1.0}
"""Seconds of a test whose file was not measured yet, by its marks."""
SHARED = {"spark": "Spark's session", "chromium": "the browser"}
"""Fixture that files share -> the group of all tests that use it, or what is made of it."""
TOGETHER = {"HBase", "Hive", "Cassandra", "HDFS"}
"""The tests of these groups stay on one worker, so that only one starts the server."""


def add_options(parser: pytest.Parser) -> None:
    """Add the options of this plugin."""
    group = parser.getgroup("airflow-ft")
    group.addoption("--all", action="store_true", help="also what is marked `release`, and whole matrices")
    group.addoption("--fixed-set", action="store_true", help="also of named files and folders only the fixed set")
    group.addoption("--record", action="store_true", help=f"write what files take into {RECORDED.name}")


class Tiers:
    """The plugin; see the module."""

    def __init__(self, config: pytest.Config) -> None:
        self.whole = bool(config.getoption("--all"))
        self.part = os.environ.get("PART", "")
        self._records = bool(config.getoption("--record")) and not hasattr(config, "workerinput")
        self._seconds: Counter[str] = Counter()
        self._groups = Path(tempfile.gettempdir()) / f"airflow-ft-groups-{os.getpid()}.json"

    def pytest_report_header(self) -> str:
        if self.whole:
            return "tier: all tests"
        return f"tier: the fixed set and part {self.part}" if self.part else "tier: the fixed set"

    @pytest.hookimpl(trylast=True)  # when pytest has put tests with the same fixtures together
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if not self.whole and not is_named(config):
            named = fixed_set()
            if not _names_paths(config) and (unknown := unknown_names(items, named)):
                raise pytest.UsageError(f"{FIXED_SET.name} names tests that do not exist: {', '.join(unknown)}")
            left_out = set(not_fixed(items, named))
            if self.part:
                left_out -= set(part_of([item for item in items if item in left_out], int(self.part)))
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


def content_number(folder: Path = Path(__file__).parent) -> int:
    """A number below 2**32 made from the hash of the committed files; 0 outside a repository.

    It depends neither on the history nor on the commit message, so a shallow clone and a rebased commit have the same.
    """
    asking = ["git", "rev-parse", "HEAD^{tree}"]
    asked = subprocess.run(asking, cwd=folder, capture_output=True, text=True, check=False)
    return int(asked.stdout[:8], 16) if asked.returncode == 0 else 0


def fixed_set(file: Path = FIXED_SET) -> set[str]:
    """Return the names in the file: node ids of tests, of functions with all their cases, or files."""
    lines = (line.strip() for line in file.read_text().splitlines())
    return {line for line in lines if line and not line.startswith("#")}


def unknown_names(items: Iterable[pytest.Item], named: Collection[str]) -> list[str]:
    """Return the names that no test has."""
    known = {name for item in items for name in _names(item)}
    return [name for name in named if name not in known]


def not_fixed(items: Iterable[pytest.Item], named: Set[str]) -> list[pytest.Item]:
    """Return the tests of matrices and groups that the fixed set leaves out, in their order."""
    matrices: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    left_out = []
    for item in items:
        function = item.nodeid.partition("[")[0]
        own = next((mark for mark in item.own_markers if mark.name == "sampled"), None)
        closest = own or item.get_closest_marker("sampled")
        if closest is not None and "among" in closest.kwargs:
            if not named.intersection(_names(item)):
                left_out.append(item)
        elif own is not None:
            name = " ".join([_file(item), *own.args]) if own.args else function
            matrices[name, own.kwargs.get("one_in", SAMPLE)].append(item)
        elif closest is not None:
            matrices[_file(item), SAMPLE].append(item)
        elif function.startswith(MATRICES):
            matrices[function, SAMPLE].append(item)
    for (_, one_in), cases in matrices.items():
        by_hash = sorted(cases, key=lambda case: hashlib.sha256(case.nodeid.encode()).digest())
        left_out += by_hash[-(-len(cases) // one_in) :]
    return left_out


def part_of(items: Sequence[pytest.Item], part: int) -> list[pytest.Item]:
    """Return one of the `PARTS` parts of the tests; together the parts are all of them."""
    return list(items[part % PARTS :: PARTS])


def is_named(config: pytest.Config) -> bool:
    """Return whether the command line names the tests, so that all of them run."""
    if config.getoption("--fixed-set"):
        return False
    if any("::" in argument for argument in config.args) or config.getoption("-k"):
        return True
    return _names_paths(config)


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
    """Return the group that a test shares a server with; "": none."""
    mark = item.get_closest_marker("sampled")
    among: str = mark.kwargs.get("among", "") if mark is not None else ""
    return among if among in TOGETHER else ""


def _names(item: pytest.Item) -> tuple[str, str, str]:
    """Return what the fixed set may name: the test, its function, its file."""
    return item.nodeid, item.nodeid.partition("[")[0], _file(item)


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
