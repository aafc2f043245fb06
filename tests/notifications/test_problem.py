"""Whoever is called tells which pipelines need a person, why, and what to do; and nothing where none does."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.sdk import DAG, BaseNotifier
from airflow.sdk.definitions.callback import AsyncCallback, SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_ft import BarrierSensor, CheckpointedPipeline, StreamGroupOperator
from airflow_ft.notifications.problem import ProblemNotifier
from airflow_ft.operators.failing import note_failed_task
from airflow_ft.operators.recover import RecoverOperator
from airflow_ft.operators.stream_group import _raise_failures
from airflow_ft.operators.sweep import RecoverAllOperator
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    FoundProblemsError,
    JobError,
    StoreUnavailableError,
)
from airflow_ft.protocol.failure import Failure
from airflow_ft.protocol.noting import mark_unstored
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.protocol.problems import Problem
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from tests.operators.declared import spec
from tests.operators.test_base import airflow_context, in_process_of
from tests.raising import raises
from tests.store.scene import RUN, Scene

pytestmark = pytest.mark.airflow

log = logging.getLogger(__name__)
SENT: list[str] = []
"""What the notifiers below have sent."""


class Chat(BaseNotifier):
    """Stands for a notifier of a provider: its templates are rendered with the context."""

    template_fields = ("text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, _: Any) -> None:
        if self.text == "broken":
            raise ConnectionError("the chat is away")
        SENT.append(self.text)


def receive(problem: Problem) -> None:
    SENT.append(problem.text)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DecisionLog]:
    """`broken` is HALTED, `kept` has a QUARANTINED checkpoint, `slow` is late, `well` is not."""
    SENT.clear()
    url = f"sqlite:///{tmp_path}/ft.db"
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", url)
    with closing(open_store(url)) as opened:
        Scene(opened, "broken")
        opened.halt("broken", HaltReason.TOKEN_LOST, "it is gone.")
        kept = Scene(opened, "kept")
        kept.stage()
        kept.prepare(1)
        opened.quarantine("kept", kept.epoch, 1, "the table is locked.")
        Scene(opened, "slow").stage(made_with={"late_after": 1e-5})
        well = Scene(opened, "well")
        well.stage()
        well.complete(1)
        yield opened


def received(notifier: ProblemNotifier, **context: Any) -> list[str]:
    notifier(context)
    return SENT


def test_each_problem_is_told_with_cause_and_remedy(store: DecisionLog) -> None:
    halted, kept, late = received(ProblemNotifier(receive))
    for text, headline, cause, command in (
        (halted, "pipeline broken is HALTED: ", "(TOKEN_LOST): it is gone.", "`airflow ft resume broken`"),
        (kept, "pipeline kept is QUARANTINED: ", "the table is locked.", "`airflow ft in-doubt --pipeline kept`"),
        (late, "pipeline slow is LATE: ", "nothing was confirmed for 0:0", "`airflow ft pipelines`"),
    ):
        what, _, fix = text.partition("\nFix: ")
        assert what.startswith(headline) and cause in what and command in fix


def test_a_damaged_row_hides_no_other_problem(store: DecisionLog) -> None:
    with store._database.write() as tx:  # type: ignore[attr-defined]
        tx.change("UPDATE checkpoint SET segment_rows = '{' WHERE pipeline = 'kept'")
    _, damaged, late = received(ProblemNotifier(receive))
    assert (
        damaged.startswith("pipeline kept is HALTED: the decision log is damaged: ") and "\nFix: Keep a copy" in damaged
    )
    assert late.startswith("pipeline slow is LATE: ")


def test_an_unreachable_decision_log_is_reported(store: DecisionLog) -> None:
    url = "postgresql://ada@127.0.0.1:1/db?connect_timeout=2"
    with raises(StoreUnavailableError, "server_unreachable"):
        ProblemNotifier(receive, pipelines=["well"], store=url).notify({})
    [text] = SENT
    assert "decision log" in text.partition("\n")[0]


def failed_by(error: AirflowFtError) -> AirflowException:
    """As a task ends: `airflow_ft.operators.failing.fail`."""
    try:
        try:
            raise error
        except AirflowFtError as found:
            raise AirflowException(str(found)) from None
    except AirflowException as failed:
        return failed


def test_a_failure_that_the_decision_log_missed_is_reported(store: DecisionLog) -> None:
    """It was away when the task failed, and answers again when the callback runs."""
    error = StoreUnavailableError("the decision log does not answer.", remedy="Start its server.")
    away = failed_by(error)
    task = SimpleNamespace(pipeline="well", task_id="well.stage")
    assert not received(ProblemNotifier(receive), exception=away, task=task), "a dry run, which stores none"
    note_failed_task(log, {}, error, "well", None)  # type: ignore[arg-type]
    task = SimpleNamespace(pipeline="well", task_id="well.stage")
    [text] = received(ProblemNotifier(receive), exception=away, task=task)
    assert text.startswith("pipeline well is FAILED: the task well.stage failed: the decision log does not answer.")
    assert text.endswith("\nFix: Start its server.")
    SENT.clear()
    group = SimpleNamespace(specs=[spec("well"), spec("slow")], task_id="group")
    found = received(ProblemNotifier(receive, conditions=["FAILED"]), exception=away, task=group)
    assert found == ["the decision log does not answer.\nFix: Start its server."]
    SENT.clear()
    assert not received(ProblemNotifier(receive, conditions=["HALTED"]), exception=away, task=task)
    store.record_failure("well", RUN, Failure("JobError", "job_failed", "the job raised."))
    earlier, text = received(ProblemNotifier(receive), exception=away, task=task)
    assert "the job raised" in earlier and "the decision log does not answer." in text
    SENT.clear()
    other = failed_by(JobError("the job raised."))
    assert not received(ProblemNotifier(receive, pipelines=["slow"], conditions=["FAILED"]), exception=other, task=task)
    assert not received(ProblemNotifier(receive, pipelines=["slow"], conditions=["FAILED"]), exception=away, task=task)
    declared = SimpleNamespace(pipeline="well", suffix="{{ ds }}", task_id="well.stage", dag_id="another")
    found = received(ProblemNotifier(receive, conditions=["FAILED"]), exception=away, task=declared)
    assert found == ["the decision log does not answer.\nFix: Start its server."], "its whole name is not known"


def test_a_failure_is_marked_where_it_cannot_be_stored(store: DecisionLog) -> None:
    for marked, url in ((False, None), (True, "postgresql://ada@127.0.0.1:1/db?connect_timeout=2")):
        error = JobError("the job raised.", remedy="Correct it.")
        ti = SimpleNamespace(dag_id=RUN.dag_id, run_id=RUN.run_id, map_index=-1, task_id="well.stage", try_number=1)
        note_failed_task(log, {"ti": ti}, error, "well", url)  # type: ignore[typeddict-item]
        assert error.unstored is marked
    group = SimpleNamespace(specs=[spec("well"), spec("slow")], task_id="group")
    with pytest.raises(AirflowFtError) as raised:
        _raise_failures({"well": error, "kept": JobError("another.")})
    failed = failed_by(raised.value)
    for names, count in ((["slow"], 0), (["well"], 1)):
        SENT.clear()
        notifier = ProblemNotifier(receive, pipelines=names, conditions=["FAILED"])
        texts = [each for each in received(notifier, exception=failed, task=group) if "2 of the group" in each]
        assert len(texts) == count


def test_a_foreign_error_that_the_log_missed_is_reported(store: DecisionLog) -> None:
    error = KeyError("a secret")
    task = SimpleNamespace(pipeline="well", task_id="well.stage")
    assert not received(ProblemNotifier(receive), exception=error, task=task)
    note_failed_task(log, {}, error, "well", "postgresql://ada@127.0.0.1:1/db?connect_timeout=2")  # type: ignore[arg-type]
    [text] = received(ProblemNotifier(receive), exception=error, task=task)
    assert text.startswith("pipeline well is FAILED: the task well.stage failed with a KeyError.\nFix: ")
    assert "secret" not in text


def test_an_error_that_came_while_ours_was_handled_is_reported(store: DecisionLog) -> None:
    """Such as that of a cleanup: it is the one that the decision log did not get."""
    try:
        try:
            raise JobError("the job raised.", remedy="Correct it.")
        except JobError:
            raise KeyError("cleanup")  # noqa: B904
    except KeyError as failed:
        mark_unstored(failed)
        task = SimpleNamespace(pipeline="well", task_id="well.stage")
        found = received(ProblemNotifier(receive, conditions=["FAILED"]), exception=failed, task=task)
    assert len(found) == 1 and "KeyError" in found[0]


def test_an_exception_that_cannot_be_marked_stays_as_it_is() -> None:
    @dataclass(frozen=True)
    class FrozenError(Exception):
        text: str

    mark_unstored(error := FrozenError("as it is"))
    assert not hasattr(error, "unstored")


@pytest.mark.parametrize(
    ("error", "kind"),
    [(StoreUnavailableError("it does not answer."), AirflowException), (KeyError("a secret"), KeyError)],
)
def test_a_recovery_that_fails_itself_is_reported(
    store: DecisionLog, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
) -> None:
    """It has no pipeline under which the decision log could keep that."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr("airflow_ft.operators.sweep.recover_all", fail)
    task = RecoverAllOperator(task_id="recover_all")
    with pytest.raises(kind) as failed:
        RecoverAllOperator.execute.__wrapped__(task, {})  # type: ignore[attr-defined]
    *others, text = received(ProblemNotifier(receive), exception=failed.value, task=task)
    assert len(others) == 3 and "secret" not in text
    assert ("does not answer" if isinstance(error, StoreUnavailableError) else "recover_all failed") in text


def test_a_task_marks_its_failure_if_the_log_is_away() -> None:
    task = RecoverOperator(task_id="recover", spec=spec(store="postgresql://ada@127.0.0.1:1/db?connect_timeout=2"))
    with raises(AirflowException, "server_unreachable") as failed:
        RecoverOperator.execute.__wrapped__(task, airflow_context())  # type: ignore[attr-defined]
    assert failed.error is not None and failed.error.unstored


def test_an_error_that_only_the_recovery_has_is_reported(store: DecisionLog) -> None:
    chat = Chat("{{ problem.headline }}")
    for names, count in ((["broken", "well"], 4), (["broken"], 3)):
        SENT.clear()
        error = FoundProblemsError(f"{len(names)} pipelines need a person:\nwell: its file is lost.", pipelines=names)
        try:
            try:
                raise error
            except FoundProblemsError as found:
                raise AirflowFailException(str(found)) from None
        except AirflowFailException as failed:
            received(ProblemNotifier(chat), exception=failed)
        assert len(SENT) == count
        assert ("2 pipelines need a person" in SENT) == (count == 4)


def test_a_provider_notifier_renders_every_problem_on_each_call(store: DecisionLog) -> None:
    chat = Chat("{{ problem.headline }} ({{ run_id }})")
    for _ in range(2):
        received(ProblemNotifier(chat, conditions=["halted", "late"]), run_id="r")
    assert SENT == ["pipeline broken is HALTED (r)", "pipeline slow is LATE (r)"] * 2


def test_a_task_of_a_pipeline_tells_of_its_own(store: DecisionLog) -> None:
    for name in ("well", "kept", "nowhere"):
        received(ProblemNotifier(Chat("{{ problem.pipeline }}")), task=SimpleNamespace(pipeline=name))
    assert SENT == ["kept"]


def test_a_name_that_the_log_lacks_is_mentioned(store: DecisionLog, caplog: pytest.LogCaptureFixture) -> None:
    assert received(ProblemNotifier(Chat("{{ problem.pipeline }}"), pipelines=["kept", "kepd"])) == ["kept"]
    [text] = [each.getMessage() for each in caplog.records if "no such pipeline" in each.getMessage()]
    assert text.startswith("kepd: ") and "kept" in text


def test_a_task_of_several_pipelines_reports_those(store: DecisionLog) -> None:
    barrier = BarrierSensor(task_id="passed", pipelines=["kept", "well"], barrier="closing")
    recovery = RecoverAllOperator(task_id="recover", pipelines=["slow"])
    for task in (barrier, recovery):
        received(ProblemNotifier(Chat("{{ problem.pipeline }}")), task=task)
    assert SENT == ["kept", "slow"]


def test_a_sensor_reports_the_pipeline_with_its_suffix(store: DecisionLog) -> None:
    """After the triggerer Airflow renders the two parts again."""
    Scene(store, "shop-eu")
    store.halt("shop-eu", HaltReason.TOKEN_LOST, "it is gone.")
    task = SimpleNamespace(pipeline="shop", suffix="eu", dag_id="another")
    assert received(ProblemNotifier(Chat("{{ problem.pipeline }}")), task=task) == ["shop-eu"]


@pytest.mark.parametrize("named", [{"pipeline": "{{ 'kept' }}"}, {"suffix": "{{ ds }}"}], ids=str)
def test_a_task_whose_worker_died_reports_its_dag(store: DecisionLog, named: dict[str, Any]) -> None:
    """Airflow's DAG processor renders nothing."""
    for dag_id in (RUN.dag_id, "another"):
        with DAG(dag_id, schedule=None) as dag:
            CheckpointedPipeline(spec(**named))
            StreamGroupOperator(task_id="streams", streams=[spec(streaming=True, **named)])
        for task in dag.tasks[0], dag.get_task("streams"):
            received(ProblemNotifier(Chat("{{ problem.pipeline }}")), task=task)
    assert SENT == ["kept", "slow"] * 2


def test_bounds_for_pipelines_that_say_none(store: DecisionLog) -> None:
    some: dict[str, Any] = {"pipelines": ["well"], "to": receive}
    for hour in (timedelta(hours=1), pendulum.duration(hours=1)):
        assert received(ProblemNotifier(**some, late_after=hour)) == []
    assert len(received(ProblemNotifier(**some, late_after=0))) == 1
    SENT.clear()
    Scene(store, "well").stage(made_with={"late_after": 3600})
    assert received(ProblemNotifier(**some, late_after=0)) == [], "its own bound counts"
    Scene(store, "well").stage()
    [waiting] = received(ProblemNotifier(**some, patience=0))
    assert waiting.startswith("pipeline well is WAITING: checkpoint 2 was published ") and "in-doubt" in waiting


def test_a_bound_counts_from_the_last_look_as_the_page_does(store: DecisionLog) -> None:
    quiet, _ = Scene(store, "quiet"), Scene(store, "silent")
    quiet.stage(continues=True)
    quiet.complete(1)
    with store._database.write() as tx:  # type: ignore[attr-defined]
        tx.change("UPDATE checkpoint SET completed_at = completed_at - 7200000000 WHERE pipeline = 'quiet'")
        tx.change("UPDATE pipeline SET created_at = created_at - 7200000000 WHERE name IN ('quiet', 'silent')")
    some: dict[str, Any] = {"pipelines": ["quiet", "silent"], "to": receive, "late_after": 3600}
    assert [each.split()[1] for each in received(ProblemNotifier(**some))] == ["quiet", "silent"]
    SENT.clear()
    store.read_all("quiet", quiet.epoch, RUN, store.now())
    assert [each.split()[1] for each in received(ProblemNotifier(**some))] == ["silent"]


def test_one_that_cannot_be_told_keeps_no_other_from_being_told(store: DecisionLog) -> None:
    with pytest.raises(ConnectionError):
        received(ProblemNotifier(Chat("{{ problem.pipeline }}")))
    assert SENT == ["kept", "slow"]


@pytest.mark.parametrize(
    "given",
    [
        {"to": f"{__name__}.receive"},
        {"to": f"{__name__}.Chat", "arguments": {"text": "{{ problem.text }}"}},
    ],
)
def test_a_deadline_calls_it_with_plain_data(given: dict[str, Any], store: DecisionLog) -> None:
    arguments = json.loads(json.dumps({**given, "pipelines": ["broken"], "conditions": ["HALTED"], "late_after": 60}))
    for kind in (SyncCallback, AsyncCallback):
        callback = kind(ProblemNotifier, kwargs=arguments)
        DeadlineAlert(reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=timedelta(hours=1), callback=callback)
        assert callback.path == "airflow_ft.notifications.problem.ProblemNotifier"
    ProblemNotifier(**arguments)({})  # as an executor does

    async def wait() -> None:
        await ProblemNotifier(**arguments, context={"dag_run": {}})  # type: ignore[arg-type]

    asyncio.run(wait())  # as the triggerer does
    assert len(SENT) == 2 and all(text.startswith("pipeline broken is HALTED") for text in SENT)


@pytest.mark.parametrize(
    ("argument", "given", "value"),
    [
        ("to", 5, "5"),
        ("pipelines", "orders", "'orders'"),
        ("conditions", ["IDLE"], "IDLE"),
        ("late_after", "soon", "'soon'"),
        ("conditions", "FAILED", "'FAILED'"),
        ("pipelines", 5, "5"),
        ("pipelines", [], "a list"),
        ("pipelines", ["{{ params.shop }}"], "a list"),
        ("store", "{{ conn.log }}", "'{{ conn.log }}'"),
        ("arguments", "x", "'x'"),
    ],
)
def test_what_cannot_work_is_told_when_the_dag_is_parsed(argument: str, given: Any, value: str) -> None:
    with raises(ConfigurationError, "argument_invalid", argument=argument, value=value):
        ProblemNotifier(**{argument: given})


def test_a_password_in_its_arguments_is_refused() -> None:
    with raises(ConfigurationError, "password_visible", argument="store"):
        ProblemNotifier(store="postgresql://ada:sesame@db/x")


def test_a_dead_stream_is_reported_but_a_stopped_one_is_not(store: DecisionLog) -> None:
    broken = Failure("JobError", "job_failed", "the job raised.", "correct it.", task_id="stage", try_number=2)
    store.record_failure("well", RUN, broken)
    stopped, dead = Scene(store, "stopped"), Scene(store, "dead")
    for each in (stopped, dead):
        each.stage(made_with={"streaming": True})
    store.enter_turn("dead", RUN, None)
    database = store._database  # type: ignore[attr-defined]
    with database.write() as tx:
        tx.change("UPDATE lease SET renewed_at = 1 WHERE pipeline = 'dead'")
    found = received(ProblemNotifier(receive, pipelines=["well", "stopped", "dead"]))
    assert [each.split(": ")[0] for each in found] == ["pipeline dead is NOT_RUNNING", "pipeline well is FAILED"]
    assert "the job raised" in found[1] and "Fix: correct it." in found[1] and "task stage" in found[1]
    SENT.clear()
    assert not received(ProblemNotifier(receive, pipelines=["well"], conditions=["HALTED"]))
    stopped.complete(1)
    store.retire("well", "ada")
    assert not received(ProblemNotifier(receive, pipelines=["well", "stopped"], late_after=0)), (
        "both are silent on purpose"
    )


def test_airflow_is_asked_only_where_it_answers(store: DecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """DAG processor, triggerer and executors do not answer requests for a run, not even with an error."""

    class Silent:
        def send(self, msg: Any) -> None:
            asked.append(type(msg).__name__)
            raise OSError("no answer, for ever")

    asked: list[str] = []
    monkeypatch.setattr("airflow.sdk.execution_time.task_runner.SUPERVISOR_COMMS", Silent(), raising=False)
    store.record_failure("well", RUN, Failure("JobError", "job_failed", "the job raised."))
    store.enter_turn("kept", RUN, None)
    ti = SimpleNamespace(dag_id=RUN.dag_id, run_id=RUN.run_id, task_id="stage")
    for context in ({}, {"ti": ti}):
        assert [each.split(": ")[0] for each in received(ProblemNotifier(receive), **context)][-1] == (
            "pipeline well is FAILED"
        )
        assert not asked
    in_process_of({"ti": ti}, monkeypatch)
    received(ProblemNotifier(receive), ti=ti)
    assert {*asked} == {"GetDRCount", "GetDag"}


def test_a_run_whose_own_task_notifies_counts_as_failed(store: DecisionLog) -> None:
    store.enter_turn("well", RUN, None)
    store.record_failure("well", RUN, Failure("JobError", "job_failed", "the job raised."))
    notifier = ProblemNotifier(receive, pipelines=["well"])
    assert not received(notifier, ti=SimpleNamespace(dag_id=RUN.dag_id, run_id="another", task_id="t"))
    assert len(received(notifier, ti=SimpleNamespace(dag_id=RUN.dag_id, run_id=RUN.run_id, task_id="t"))) == 1
