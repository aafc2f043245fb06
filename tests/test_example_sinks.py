"""The sinks of examples/sinks keep what the protocol demands; the kit notices what their authors get wrong."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from textwrap import indent
from typing import Any

import pyarrow.parquet as pq
import pytest
from packaging.version import Version

from airflow_ft import __version__
from airflow_ft.protocol.errors import StoreBehindSinkError, UnfitTargetError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.verify import Delivered
from airflow_ft.protocol.votes import Proof
from airflow_ft.sinks.base.document import OvertakenError
from airflow_ft.sinks.registry import system
from airflow_ft.testing import ParticipantConformance
from airflow_ft.testing.upserts import deliver, holds, table_of, upserts_of
from airflow_ft.testing.world import World
from airflow_ft.wal import open_wal
from tests import example_sinks
from tests.disks import in_memory
from tests.example_defects import DEFECTS, Defect
from tests.example_sinks import DISTRIBUTION, KINDS
from tests.test_docs import TEXT
from tests.tiers import CALLS, content_number

PAGE = TEXT["docs/writing-a-sink.md"]
TARGETS = {"shelf": "ShelfFile", "drawer": "DrawerFile", "binder": "BinderFolder"}
"""By kind, the class in its test that gives the kit a target."""
NO_KEY = "names no table (with a|whose) key"
SKIPPED = {
    "shelf": NO_KEY,
    "drawer": "names no bag|not ATOMIC|it never decides|before the others|cannot plant that|cannot be dropped",
    "binder": f"{NO_KEY}|none of its calls is seen|participant of its own|known by their places|no rows go by when",
}
"""By kind, why cases are left out, besides the reasons that are the same for all."""
ALL_SKIP = "no way to its server on which something is lost|its connection has no secret|it has no part"
SOME_KILLS = f"""
from airflow_ft.testing import ParticipantConformance

ParticipantConformance.places = ({content_number() % CALLS}, {CALLS})
ParticipantConformance.patience = 0.5
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed distribution, and its source in `source` beside it."""
    folder = tmp_path_factory.mktemp("shelf")
    example_sinks.copy(folder / "source")
    example_sinks.install(folder / "source", folder / "site")
    return folder / "site"


def on_the_path(site: Path) -> dict[str, str]:
    """Variables of a process that finds what is installed there."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_short(kind: str) -> None:
    """As the page says."""
    said = dict(zip(KINDS, re.findall(r"about\s+(\d+)\s+lines", PAGE), strict=True))
    code = "".join(file.read_text() for file in (DISTRIBUTION / f"{kind}_for_airflow").glob("*.py"))
    assert abs(sum(bool(line.strip()) for line in code.splitlines()) - int(said[kind])) <= 10


def test_they_allow_the_present_version() -> None:
    [(oldest, newer)] = re.findall(r"airflow-ft>=([\d.]+),<([\d.]+)", (DISTRIBUTION / "pyproject.toml").read_text())
    assert Version(oldest) <= Version(__version__) < Version(newer)


def test_the_page_quotes_the_files() -> None:
    quoted = re.findall(r"```(?:python|toml)\n# (\S+\.(?:py|toml))\n(.*?)```", PAGE, re.DOTALL)
    assert {name for name, _ in quoted} == {"pyproject.toml", *(f"{kind}_for_airflow/sink.py" for kind in KINDS)}
    for name, code in quoted:
        text = (DISTRIBUTION / name).read_text()
        assert code in text or indent(code, "    ") in text, name


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_passes_the_conformance_kit(installed: Path, kind: str, request: pytest.FixtureRequest) -> None:
    kit = [f"tests/test_{kind}.py", "-p", "no:cacheprovider"]
    if not request.config.getoption("--all"):  # else it takes minutes
        (installed.parent / "source" / "conftest.py").write_text(SOME_KILLS)
        kit += ["-k", "not test_memory_does_not_grow_with_rows"]
    with in_memory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rs", f"--basetemp={folder}/kit", *kit],
            cwd=installed.parent / "source", env=on_the_path(installed), capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) > 70
    skipped = re.findall(r"^SKIPPED .*", done.stdout, re.MULTILINE)
    assert [line for line in skipped if not re.search(f"{ALL_SKIP}|{SKIPPED[kind]}", line)] == []


# --- defects ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shelf(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of what is installed, for this test alone, on the path of this process and those that it starts."""
    copy = tmp_path / "site"
    shutil.copytree(installed, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(str(copy))
    monkeypatch.setenv("PYTHONPATH", on_the_path(copy)["PYTHONPATH"])
    example_sinks.forget()
    yield copy
    example_sinks.forget()


def world_of(kind: str, folder: Path) -> World:
    """Return a pipeline that delivers into the target of the sink's test."""
    folder.mkdir()
    kit = f"tests/test_{kind}.py"
    names: dict[str, Any] = {"__name__": f"test_{kind}"}
    exec(compile((DISTRIBUTION / kit).read_text(), kit, "exec"), names)
    return World(names[TARGETS[kind]](folder), folder)


class AtEveryCall(ParticipantConformance):
    """The kit as its users have it: in `make test` the sinks of the package are struck at a part of the calls."""

    places = (0, 1)


def play(defect: Defect, folder: Path) -> None:
    getattr(AtEveryCall(), defect.case)(world_of(defect.kind, folder), **defect.parameters)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_noticed(name: str, shelf: Path, tmp_path: Path) -> None:
    """Without it the same case passes: see `test_it_passes_the_conformance_kit`."""
    defect = DEFECTS[name]
    module = shelf / f"{defect.kind}_for_airflow" / "sink.py"
    text = module.read_text()
    for old, new in defect.changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    compile(text, str(module), "exec")
    module.write_text(text)
    shutil.rmtree(module.parent / "__pycache__", ignore_errors=True)
    example_sinks.forget()
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        play(defect, tmp_path / "with the defect")
    assert not isinstance(caught.value, NameError | ImportError | TypeError | AttributeError), (
        "it is the kit that notices"
    )


# --- right sinks of other designs -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shelf")
def test_a_table_may_have_versions_of_the_fence_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of("binder", tmp_path / "target")
    participant = import_module("binder_for_airflow.sink").BinderParticipant
    deliver_rows = participant._deliver

    def raise_first(self: Any, plan: Plan, fence: Fence, *of: Any) -> Proof:
        with self._writing(fence, plan) as (_, ledger):
            self._raised(ledger, fence)
        proof: Proof = deliver_rows(self, plan, fence, *of)
        return proof

    monkeypatch.setattr(participant, "_deliver", raise_first)
    ParticipantConformance().test_a_refused_delivery_leaves_no_files(world)


@pytest.mark.usefixtures("shelf")
def test_verify_is_skipped_if_no_other_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of("drawer", tmp_path / "target")
    upserts = replace(upserts_of(world), write=None)
    monkeypatch.setattr(world.target, "upserts", lambda: upserts)
    participant = import_module("drawer_for_airflow.sink").DrawerParticipant
    prepare = participant.prepare

    def refuse_others(self: Any, plan: Plan, fence: Fence) -> Any:
        if plan.pipeline.endswith("-2"):
            raise UnfitTargetError("a pipeline delivers there.", code="second_pipeline", remedy="Stop it.")
        return prepare(self, plan, fence)

    monkeypatch.setattr(participant, "prepare", refuse_others)
    with pytest.raises(pytest.skip.Exception):
        ParticipantConformance().test_verify_finds_a_deleted_key_that_is_back(world)


@pytest.mark.usefixtures("shelf")
def test_a_dataset_needs_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of("drawer", tmp_path / "target")
    placeless = replace(system("drawer"), place="")
    monkeypatch.setattr("airflow_ft.testing.parts.system", lambda kind: placeless)
    with pytest.raises(pytest.skip.Exception):
        ParticipantConformance().test_each_target_has_a_name_of_its_own_in_lineage(world)


# --- what the kit does not cover --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shelf")
def test_a_lost_reply_of_nfs_loses_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, link = world_of("binder", tmp_path / "target"), Path.hardlink_to

    def twice(path: Path, target: Path) -> None:
        link(path, target)
        if path.parent.name == "versions":
            link(path, target)

    monkeypatch.setattr(Path, "hardlink_to", twice)
    for number in (1, 2):
        world.deliver(world.plan())
        world.shows([id for each in range(1, number + 1) for id in world.ids_of(each)])


@pytest.mark.usefixtures("shelf")
def test_a_binder_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of("binder", tmp_path / "target")

    def unknown(path: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    plan = world.plan()
    monkeypatch.setattr(Path, "hardlink_to", unknown)
    with pytest.raises(UnfitTargetError) as raised:
        world.prepare(plan)
    assert raised.value.code == "file_system_unsupported"


@pytest.mark.usefixtures("shelf")
def test_a_damaged_version_of_a_binder_is_named(tmp_path: Path) -> None:
    world = world_of("binder", tmp_path / "target")
    plan = world.plan()
    world.deliver(plan)
    newest = max((tmp_path / "target").rglob("versions/*.json"))
    newest.write_text(newest.read_text()[:-5])
    with pytest.raises(StoreBehindSinkError) as raised:
        world.participant(plan).proof(plan)
    assert raised.value.code == "ledger_damaged"


@pytest.mark.usefixtures("shelf")
def test_a_document_that_has_gone_is_not_made_again(tmp_path: Path) -> None:
    world = world_of("drawer", tmp_path / "target")
    plan = world.plan()
    world.deliver(plan)
    module: Any = import_module("drawer_for_airflow.sink")
    with module.opened(world.target.connection.host) as db:
        documents = module.Documents(db, world.target.connection, plan.participants[0].name)
        changes = module.Changes(documents, world.fence(), plan, *documents.read(plan.pipeline))
        db.execute("DELETE FROM documents")
        with pytest.raises(OvertakenError):
            changes.replace()
        assert db.execute("SELECT count(*) FROM documents").fetchone() == (0,)


@pytest.mark.usefixtures("shelf")
def test_the_later_of_two_pipelines_wins_although_clocks_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of("drawer", tmp_path / "target")
    upserts = upserts_of(world)
    deliver(world, upserts, 1, world.segment_of(1, table_of([("update", 1, "first")])))
    world.pipeline, world.predecessor = f"{world.pipeline}-2", 0
    an_hour_ago = time.time_ns() - 3_600 * 10**9
    monkeypatch.setattr("time.time_ns", lambda: an_hour_ago)
    deliver(world, upserts, 1, world.segment_of(1, table_of([("update", 1, "second")])))
    holds(upserts, {1: "second"})


@pytest.mark.usefixtures("shelf")
def test_verify_compares_no_shared_drawer(tmp_path: Path) -> None:
    world = world_of("drawer", tmp_path / "target")
    plan = world.into(replace(world.target.sink, shared=True), world.plan())  # type: ignore[type-var]
    delivered = [Delivered(plan, world.deliver(plan), None)]
    verify = system("drawer").part("verify").verify
    [report] = verify(delivered, plan.participants[0], world.target.connection, open_wal())
    assert "other pipelines" in report.error


@pytest.mark.usefixtures("shelf")
def test_a_shelf_that_was_dropped_after_the_vote_is_named(tmp_path: Path) -> None:
    world = world_of("shelf", tmp_path / "target")
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    world.target.drop()
    with pytest.raises(UnfitTargetError) as raised:
        world.commit(plan, vote)
    assert raised.value.code == "table_missing"


# --- a whole pipeline -------------------------------------------------------------------------------------------------

PIPELINE = """
import json, sys
import airflow_ft as ft
from binder_for_airflow import BinderSink
from drawer_for_airflow import DrawerSink
from shelf_for_airflow import ShelfSink


@ft.job
class Orders:
    def transform(self, spark, sources):
        return sources["orders"]

    def split(self, batch):
        large, small = batch.where("amount >= 100"), batch.where("amount < 100")
        return {"large": large, "small": small, "cards": batch, "pages": batch}


result = ft.run(
    pipeline="orders",
    job=Orders,
    sources={"orders": ft.FileSource(path=sys.argv[1], schema="id bigint, customer string, amount double")},
    sinks={
        **{name: ShelfSink(table=name, conn_id="shop") for name in ("large", "small")},
        "cards": DrawerSink(drawer="orders", key="{customer}", conn_id="desk"),
        "pages": BinderSink(table=sys.argv[2]),
    },
    spark_master="local[2]",
    spark_conf={"spark.driver.memory": "700m"},
)
print(json.dumps(result))
"""


@pytest.mark.sampled(among="Spark drivers")
@pytest.mark.airflow
@pytest.mark.spark
@pytest.mark.slow
def test_files_come_into_the_sinks_through_a_whole_pipeline(installed: Path, tmp_path: Path) -> None:
    folder, script, shop = tmp_path / "in", tmp_path / "pipeline.py", tmp_path / "shop.db"
    desk, binder = tmp_path / "desk.db", tmp_path / "binder"
    folder.mkdir()
    desk.touch()
    script.write_text(PIPELINE)
    variables = {name: value for name, value in on_the_path(installed).items() if not name.startswith("AIRFLOW")}
    variables |= {
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_SHOP": json.dumps({"conn_type": "sqlite", "host": str(shop)}),
        "AIRFLOW_CONN_DESK": json.dumps({"conn_type": "desk", "host": str(desk)}),
    }
    expected: list[tuple[int, str, float]] = []
    for day in (1, 2):
        rows = [{"id": 10 * day + n, "customer": f"customer {n}", "amount": 40.0 * n} for n in range(1, 6)]
        (tmp_path / "new.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        (tmp_path / "new.json").rename(folder / f"{day}.json")
        expected += [tuple(row.values()) for row in rows]  # type: ignore[misc]
        done = subprocess.run(
            [sys.executable, str(script), str(folder), str(binder)],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        assert (result["numbers"], result["rows"], result["set_aside"]) == ([day], 15, {})
        with closing(sqlite3.connect(shop)) as db:
            found = {name: db.execute(f"SELECT * FROM {name} ORDER BY id").fetchall() for name in ("large", "small")}
        assert found == {
            "large": [row for row in expected if row[2] >= 100],
            "small": [row for row in expected if row[2] < 100],
        }
        with closing(sqlite3.connect(desk)) as db:
            cards = [json.loads(text) for (text,) in db.execute("SELECT value FROM cards")]
        assert sorted(card["id"] for card in cards) == [row["id"] for row in rows], "the last row of each customer"
        newest = json.loads(max(binder.glob("versions/*.json")).read_text())
        pages = [row for name in newest["files"] for row in pq.ParquetFile(binder / name).read().to_pylist()]
        assert sorted(tuple(page.values()) for page in pages) == expected


def test_a_dag_is_parsed_without_what_runs_in_tasks(shelf: Path) -> None:
    assert system("shelf").part("lineage") is None, "the example leaves it out"
    packages = ", ".join(f"{kind}_for_airflow" for kind in KINDS)
    heavy = {"pyarrow", "sqlite3", *(f"{kind}_for_airflow.sink" for kind in KINDS)}
    program = f"import sys, {packages}; print(sorted({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
