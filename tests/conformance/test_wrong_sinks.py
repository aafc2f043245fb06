"""The conformance kit notices wrong sinks over SQLite, PostgreSQL and MySQL: one mistake at a time.

`test_seeded_defects.py` has more of them, over SQLite alone. Without the mistake the same cases pass: `test_sqlite.py`,
`test_postgres.py` and `test_mysql.py` run each of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import Promise, Segment
from airflow_ft.protocol.set_aside import SetAside
from airflow_ft.protocol.votes import Outcome
from airflow_ft.protocol.write_ahead_log import WalFile
from airflow_ft.sinks import refused
from airflow_ft.sinks.base import memory
from airflow_ft.sinks.base import one_transaction as module
from airflow_ft.sinks.base.one_transaction import OneTransactionParticipant, TransactionParticipant
from airflow_ft.sinks.base.sql_ledger import SqlLedger
from airflow_ft.sinks.mysql.ledger import Ledger as MySqlLedger
from airflow_ft.sinks.mysql.server import ServerParticipant
from airflow_ft.sinks.mysql.upsert import Upserter
from airflow_ft.sinks.postgres import proposal as postgres_proposal
from airflow_ft.sinks.postgres import setup as postgres_setup
from airflow_ft.sinks.postgres.local import LocalParticipant
from airflow_ft.sinks.postgres.session import Limits
from airflow_ft.sinks.postgres.session import Session as PostgresSession
from airflow_ft.sinks.sqlite import lineage as sqlite_lineage
from airflow_ft.sinks.sqlite import participant as of_sqlite
from airflow_ft.sinks.sqlite import requirements as sqlite_requirements
from airflow_ft.sinks.sqlite.participant import SqliteParticipant
from airflow_ft.sinks.sqlite.spec import SqliteSink
from airflow_ft.sinks.view import SegmentView
from airflow_ft.testing import ParticipantConformance, Target
from airflow_ft.testing import world as kit
from airflow_ft.testing.world import World
from airflow_ft.wal import dead_letters, open_wal
from tests.conformance.test_mysql import Table as MySqlTable
from tests.conformance.test_postgres import Table as PostgresTable
from tests.conformance.test_sqlite import File
from tools.servers import Database

SQLITE, POSTGRES, MYSQL = "sqlite", "postgres", "mysql"
EVERY = (SQLITE, POSTGRES, MYSQL)
SHARED = (SQLITE, POSTGRES)
"""Those whose head is raised in a transaction, as `OneTransactionParticipant` does it."""

Change = Callable[[Any, str, Any], None]


@dataclass(frozen=True)
class Wrong:
    """A mistake, and the case of the kit that notices it, with that case's parameters."""

    make: Callable[[Change], None]
    case: str
    parameters: dict[str, Any] = field(default_factory=dict)
    strategy: str = "local"


WRONG: dict[tuple[str, str], Wrong] = {}
"""By name and system."""


def noticed_by(
    case: str, *systems: str, strategy: str = "local", **parameters: Any
) -> Callable[[Callable[[Change], None]], Callable[[Change], None]]:
    def register(make: Callable[[Change], None]) -> Callable[[Change], None]:
        for system in systems:
            WRONG[make.__name__, system] = Wrong(make, case, parameters, strategy)
        return make

    return register


# --- how it reads the log ---------------------------------------------------------------------------------------------


class Misread(SegmentView):
    """A segment as a wrong sink reads it."""

    def __init__(self, segment: Segment, rows: Callable[[pa.RecordBatch], pa.RecordBatch], files: int, batches: int):
        super().__init__(open_wal().open(segment))
        self._rows, self._files, self._batches = rows, files, batches

    def schema(self, sink: str) -> pa.Schema:
        schema = super().schema(sink)
        return self._rows(pa.RecordBatch.from_pylist([], schema)).schema if schema.names else schema

    def files(self, sink: str) -> Sequence[WalFile]:
        files = list(super().files(sink))[: self._files]
        seen = {file.path: sum(batch.num_rows for batch in self.batches(sink, file)) for file in files}
        return [replace(file, rows=seen[file.path]) for file in files]

    def batches(self, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        for _, batch in zip(range(self._batches), super().batches(sink, file), strict=False):
            yield self._rows(batch)


def misreading(
    change: Change,
    rows: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows,
    files: int = 1_000,
    batches: int = 1_000,
) -> None:
    class Wal:
        def open(self, segment: Segment) -> Misread:
            return Misread(segment, rows, files, batches)

        def dead_letters(self, plan: Any) -> Any:
            return open_wal().dead_letters(plan)

    change(kit, "open_wal", Wal)


def once(rows: pa.RecordBatch) -> pa.RecordBatch:
    values = rows.to_pylist()
    return rows.take(pa.array([n for n, row in enumerate(values) if row not in values[:n]], pa.int64()))


@noticed_by("test_equal_rows_all_come", *EVERY)
def equal_rows_are_stored_once(change: Change) -> None:
    misreading(change, once)


@noticed_by("test_equal_rows_all_come", *EVERY)
def rows_of_nulls_are_left_out(change: Change) -> None:
    misreading(change, lambda rows: rows.filter(pc.is_valid(rows.column("id"))))


@noticed_by("test_every_file_of_a_segment_comes", *EVERY)
def only_the_first_file_is_read(change: Change) -> None:
    misreading(change, files=1)


@noticed_by("test_every_batch_of_a_file_comes", *EVERY)
def only_the_first_batch_is_read(change: Change) -> None:
    misreading(change, batches=1)


@noticed_by("test_what_is_committed_is_visible_once_and_proven", *EVERY)
def the_last_row_of_a_batch_is_left_out(change: Change) -> None:
    misreading(change, lambda rows: rows.slice(0, rows.num_rows - 1))


@noticed_by("test_columns_have_names_not_places", *EVERY, names=("note", "text", "id"))
def columns_are_placed_as_in_the_first_segment(change: Change) -> None:
    first: list[str] = []

    def placed(rows: pa.RecordBatch) -> pa.RecordBatch:
        first[:] = first or rows.schema.names
        if rows.schema.names == first:
            return rows
        moved = {name: column.cast(pa.string()) for name, column in zip(first, rows.columns, strict=True)}
        return pa.RecordBatch.from_pydict({**moved, "id": pa.nulls(rows.num_rows, pa.int64())})

    misreading(change, placed)


@noticed_by("test_columns_have_names_not_places", *EVERY, names=("text", "id", "note"))
def texts_change_places(change: Change) -> None:
    def swapped(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.schema.names[0] == "id" or "note" not in rows.schema.names:
            return rows
        names = ["note" if name == "text" else "text" if name == "note" else name for name in rows.schema.names]
        return rows.rename_columns(names)

    misreading(change, swapped)


# --- upserts ----------------------------------------------------------------------------------------------------------


@noticed_by("test_a_delete_deletes", POSTGRES, MYSQL, strategy="upsert")
def deletes_are_left_out(change: Change) -> None:
    misreading(change, lambda rows: rows.filter(pc.not_equal(rows.column("op"), "delete")))


@noticed_by("test_a_delete_deletes", POSTGRES, MYSQL, strategy="upsert")
def deletes_are_written_as_rows(change: Change) -> None:
    def written(rows: pa.RecordBatch) -> pa.RecordBatch:
        at = rows.schema.get_field_index("op")
        return rows.set_column(at, "op", pc.replace_substring(rows.column(at), "delete", "update"))

    misreading(change, written)


@noticed_by("test_the_last_change_of_a_key_counts", POSTGRES, MYSQL, strategy="upsert")
def the_first_change_of_a_batch_wins(change: Change) -> None:
    misreading(change, lambda rows: rows.take(pa.array(range(rows.num_rows - 1, -1, -1), pa.int64())))


@noticed_by("test_the_last_change_of_a_key_counts", POSTGRES, strategy="upsert")
def the_first_change_of_a_checkpoint_wins(change: Change) -> None:
    run = PostgresSession.run
    change(PostgresSession, "run", lambda self, sql, *of: run(self, sql.replace(" DESC", " ASC"), *of))


@noticed_by("test_null_takes_the_place_of_a_value", POSTGRES, strategy="upsert")
def null_leaves_the_older_value(change: Change) -> None:
    run = PostgresSession.run
    new, kept = '"text" = excluded."text"', '"text" = coalesce(excluded."text", there."text")'
    change(PostgresSession, "run", lambda self, sql, *of: run(self, sql.replace(new, kept), *of))


@noticed_by("test_a_row_of_a_higher_number_is_left_alone", POSTGRES, strategy="upsert")
def versions_are_not_compared(change: Change) -> None:
    run = PostgresSession.run

    def unguarded(self: Any, sql: str, *of: Any) -> Any:
        return run(self, sql.replace('coalesce(there."version", 0) <=', "0 <="), *of)

    change(PostgresSession, "run", unguarded)


@noticed_by("test_a_row_of_a_higher_number_is_left_alone", MYSQL, strategy="upsert")
def versions_of_changes_are_not_compared(change: Change) -> None:
    suffix = Upserter._suffix
    change(Upserter, "_suffix", lambda *of: suffix(*of).replace("COALESCE(", "0 * COALESCE("))


# --- what it remembers ------------------------------------------------------------------------------------------------


def keyed(change: Change, of: Callable[[str, str], tuple[str, str]]) -> None:
    change(SqlLedger, "key", property(lambda self: of(self.pipeline, self.participant)))


@noticed_by("test_participants_of_one_database_are_apart", *EVERY, other="another")
def participants_share_a_marker(change: Change) -> None:
    keyed(change, lambda pipeline, _: (pipeline, "all"))


@noticed_by("test_participants_of_one_database_are_apart", *EVERY, other="upper")
def names_of_participants_are_folded(change: Change) -> None:
    keyed(change, lambda pipeline, participant: (pipeline, participant.lower()))


@noticed_by("test_pipelines_of_similar_names_are_apart", *EVERY, names=("a-b", "a_b"))
def names_of_pipelines_are_folded(change: Change) -> None:
    keyed(change, lambda pipeline, participant: (pipeline.replace("_", "-"), participant))


@noticed_by("test_pipelines_of_similar_names_are_apart", *EVERY, names=("ab", "a_"))
def names_of_pipelines_are_patterns(change: Change) -> None:
    keyed(change, lambda pipeline, participant: (pipeline[:-1], participant))


@noticed_by("test_one_object_is_fenced_between_its_steps", *SHARED, step="commit")
def the_head_is_read_once(change: Change) -> None:
    raised = OneTransactionParticipant._raised

    def cached(self: Any, ledger: Any, fence: Any) -> Any:
        if not hasattr(self, "seen"):
            self.seen = raised(self, ledger, fence)
        return self.seen

    change(OneTransactionParticipant, "_raised", cached)


@noticed_by("test_one_object_sees_what_others_have_done", *EVERY)
def a_proof_is_read_once(change: Change) -> None:
    proof = TransactionParticipant._proof

    def cached(self: Any, plan: Any) -> Any:
        self.proofs = getattr(self, "proofs", {})
        if plan.number not in self.proofs:
            self.proofs[plan.number] = proof(self, plan)
        return self.proofs[plan.number]

    change(TransactionParticipant, "_proof", cached)


@noticed_by("test_a_marker_of_other_rows_proves_nothing", *EVERY, step="proof")
def a_proof_has_the_digest_of_the_plan(change: Change) -> None:
    def of_the_plan(self: Any, plan: Any) -> Any:
        with self._reading(plan.pipeline, plan) as ledger:
            marker = ledger.marker(plan.number)
        return replace(marker.proof(self.name, plan.number), digest=plan.digest)

    change(TransactionParticipant, "_proof", of_the_plan)


@noticed_by("test_a_marker_of_other_rows_proves_nothing", *EVERY, step="commit")
def a_marker_of_other_rows_is_good_enough(change: Change) -> None:
    change(memory, "check_marker", lambda *_: None)


@noticed_by("test_a_fenced_step_leaves_the_head_as_it_is", *SHARED)
def a_fenced_step_lowers_the_head(change: Change) -> None:
    def lowered(self: Any, ledger: Any, fence: Any) -> Any:
        head = ledger.head()
        ledger.raise_head(fence)
        return replace(head, epoch=fence.epoch, attempt=fence.attempt)

    change(OneTransactionParticipant, "_raised", lowered)


@noticed_by("test_a_number_that_was_aborted_and_forgotten_never_comes", *EVERY)
def the_floor_is_not_raised(change: Change) -> None:
    change(SqlLedger, "raise_floor", lambda *_: None)


@noticed_by("test_forgotten_markers_do_not_bring_rows_back", *EVERY)
def a_marker_too_many_is_pruned(change: Change) -> None:
    prune = SqlLedger.prune
    change(SqlLedger, "prune", lambda self, floor: prune(self, floor + 1))


@noticed_by("test_an_adopted_number_is_the_last_delivered_one", *SHARED)
def who_adopts_begins_at_nought(change: Change) -> None:
    write = SqlLedger.write_head
    change(SqlLedger, "write_head", lambda self, head: write(self, replace(head, last_delivered=0, floor=0)))


@noticed_by("test_an_adopted_number_is_the_last_delivered_one", MYSQL)
def who_adopts_forgets_the_number(change: Change) -> None:
    write = MySqlLedger.write_head
    change(MySqlLedger, "write_head", lambda self, head: write(self, replace(head, last_delivered=0)))


@noticed_by("test_a_new_pipeline_is_adopted_at_a_number", *EVERY)
def only_a_known_pipeline_is_adopted(change: Change) -> None:
    adopt = TransactionParticipant._adopt

    def known(self: Any, fence: Any, number: int) -> None:
        if self._head(fence.pipeline) is not None:
            adopt(self, fence, number)

    change(TransactionParticipant, "_adopt", known)


LOST = "test_whatever_is_lost_on_the_way_the_next_one_finishes"

# --- transactions -----------------------------------------------------------------------------------------------------


@noticed_by("test_it_meets_later_numbers_when_it_wakes_up", *EVERY, step="commit")
def what_was_checked_is_written_in_the_next_transaction(change: Change) -> None:
    deliver = TransactionParticipant._deliver

    def apart(self: Any, plan: Any, fence: Any, set_aside: bool, more: Any) -> Any:
        with self._writing(fence, plan) as (_, ledger):
            head = self._raised(ledger, fence)
            if self._is_settled(ledger, head, plan, fence, exactly=True):
                return self._current_proof(ledger, plan)
        checked = self._raised, self._is_settled
        self._raised, self._is_settled = lambda *_: head, lambda *_, **__: False
        try:
            return deliver(self, plan, fence, set_aside, more)
        finally:
            self._raised, self._is_settled = checked

    change(TransactionParticipant, "_deliver", apart)


@noticed_by("test_it_meets_later_numbers_when_it_wakes_up", *SHARED, step="prepare")
def prepare_raises_the_head_in_the_next_transaction(change: Change) -> None:
    def apart(self: Any, ledger: Any, fence: Any) -> Any:
        memory.check_owner(head := ledger.head(), fence)
        return head

    prepare = OneTransactionParticipant._prepare

    def late(self: Any, plan: Any, fence: Any) -> Any:
        self._raised = lambda ledger, of: apart(self, ledger, of)
        notes = prepare(self, plan, fence)
        with self._writing(fence, plan) as (_, ledger):
            ledger.raise_head(fence)
        return notes

    change(OneTransactionParticipant, "_prepare", late)


@noticed_by("test_an_error_at_any_call_is_reported", SQLITE, step="commit")
def an_error_of_commit_is_swallowed_by_the_file(change: Change) -> None:
    writing = SqliteParticipant._writing

    @contextmanager
    def quiet(self: Any, *of: Any, **more: Any) -> Iterator[Any]:
        with writing(self, *of, **more) as (db, ledger):
            yield db, ledger
            try:
                db.execute("COMMIT")
            except sqlite3.Error:
                db.execute("ROLLBACK")
            if not db.in_transaction:
                db.execute("BEGIN")

    change(SqliteParticipant, "_writing", quiet)


@noticed_by(
    "test_whatever_is_lost_on_the_way_the_next_one_finishes", POSTGRES, step="commit", fate=kit.Fate.LOSE_REQUEST
)
def an_error_of_commit_is_swallowed(change: Change) -> None:
    end = LocalParticipant._end

    def quiet(self: Any, session: Any, *of: Any) -> None:
        with suppress(Exception):
            end(self, session, *of)

    change(LocalParticipant, "_end", quiet)


@noticed_by(LOST, MYSQL, step="commit", fate=kit.Fate.LOSE_REQUEST)
def an_error_of_the_last_commit_is_swallowed(change: Change) -> None:
    end = ServerParticipant._end

    def quiet(self: Any, *of: Any) -> None:
        with suppress(Exception):
            end(self, *of)

    change(ServerParticipant, "_end", quiet)


@noticed_by("test_many_rows_come_all_or_none", SQLITE)
def every_thousand_rows_are_committed(change: Change) -> None:
    change(File, "flaw", f"{__name__}:commit_every_thousand_rows")


def commit_every_thousand_rows() -> None:
    """The mistake, in the process that is killed."""
    insert = of_sqlite._Load.insert

    def apart(self: Any, rows: Any) -> str:
        why = insert(self, rows)
        if rows.num_rows >= 1_000:
            self.db.execute("COMMIT")
            self.db.execute("BEGIN IMMEDIATE")
        return why

    of_sqlite._Load.insert = apart  # type: ignore[method-assign]


# --- rows that are set aside ------------------------------------------------------------------------------------------

ASIDE = "test_rows_that_are_set_aside_are_named_and_the_others_come"


@noticed_by(ASIDE, *EVERY)
def dead_letters_are_not_written(change: Change) -> None:
    change(dead_letters.ParquetDeadLetters, "write", lambda self, sink, label, rows: f"{self.folder(sink)}/{label}")


@noticed_by(ASIDE, *EVERY)
def dead_letters_name_the_next_row(change: Change) -> None:
    places = refused._places
    change(refused, "_places", lambda rows: tuple((n, file, a + 1, b + 1) for n, file, a, b in places(rows)))


@noticed_by(ASIDE, *EVERY)
def dead_letters_hold_another_row(change: Change) -> None:
    table = refused._table
    change(refused, "_table", lambda rows: table(rows).set_column(0, "id", pa.array([0] * len(rows), pa.int64())))


@noticed_by(ASIDE, *EVERY)
def too_few_rows_are_told(change: Change) -> None:
    change(module, "set_aside_detail", lambda found: module_detail(found, -1))


def module_detail(found: dict[str, SetAside], more: int) -> dict[str, Any]:
    from airflow_ft.protocol.set_aside import detail

    return detail({sink: replace(each, rows=each.rows + more) for sink, each in found.items()})


@noticed_by(ASIDE, *EVERY)
def counts_are_those_of_the_plan(change: Change) -> None:
    write = SqlLedger.write_marker

    def planned(self: Any, plan: Any, fence: Any, outcome: Any, counts: Any, detail: Any) -> None:
        if outcome is Outcome.COMMITTED:
            counts.update({sink: sum(each.rows[sink] for each in plan.segments) for sink in counts})
        write(self, plan, fence, outcome, counts, detail)

    change(SqlLedger, "write_marker", planned)


# --- columns, reads and parts -----------------------------------------------------------------------------------------


@noticed_by("test_an_unknown_column_of_a_later_segment_is_named", *SHARED)
def the_first_segment_is_judged(change: Change) -> None:
    for participant in (SqliteParticipant, LocalParticipant):
        judge = participant._schema_problems

        def first(self: Any, db: Any, readers: Any, *of: Any, judge: Any = judge, **more: Any) -> Any:
            return judge(self, db, readers[:1], *of, **more)

        change(participant, "_schema_problems", first)


@noticed_by("test_an_error_while_it_reads_is_no_empty_memory", SQLITE, POSTGRES)
def a_memory_that_cannot_be_read_is_empty(change: Change) -> None:
    for step in ("_head", "_proof"):
        read = getattr(OneTransactionParticipant, step)

        def empty(self: Any, of: Any, read: Any = read) -> Any:
            try:
                return read(self, of)
            except (AirflowFtError, psycopg2.Error):
                return None

        change(OneTransactionParticipant, step, empty)


@noticed_by("test_the_system_lists_the_strategy_of_the_sink", SQLITE)
def the_strategy_has_another_name(change: Change) -> None:
    made = SqliteSink.__post_init__

    def renamed(self: SqliteSink) -> None:
        object.__setattr__(self, "strategy", "direct")
        made(self)

    change(SqliteSink, "strategies", {"direct": SqliteSink.strategies["local"]})
    change(SqliteSink, "__post_init__", renamed)


@noticed_by("test_the_system_lists_the_strategy_of_the_sink", SQLITE)
def the_strategy_promises_more(change: Change) -> None:
    change(SqliteSink, "promise", Promise.TWO_PHASE)


@noticed_by("test_an_unknown_setting_is_refused", SQLITE)
def unknown_settings_are_left_out(change: Change) -> None:
    def known(cls: type[SqliteSink], conn_id: str, strategy: str, settings: Any) -> SqliteSink:
        return cls(conn_id=conn_id, strategy=strategy, table=settings["table"], create=settings["create"])

    change(SqliteSink, "from_settings", classmethod(known))


@noticed_by("test_each_target_has_a_name_of_its_own_in_lineage", SQLITE)
def all_tables_have_one_name(change: Change) -> None:
    dataset = sqlite_lineage.dataset
    change(sqlite_lineage, "dataset", lambda settings, connection: dataset({**settings, "table": "rows"}, connection))


@noticed_by("test_unknown_columns_are_named_before_rows_are_computed", SQLITE)
def all_columns_fit_before_rows_are_computed(change: Change) -> None:
    change(sqlite_requirements, "schema_problems", lambda *_: [])


@noticed_by("test_setup_can_be_repeated_and_prepare_finds_it", POSTGRES)
def setup_makes_other_tables(change: Change) -> None:
    def create(pipeline: str, plan: Any, connection: Any) -> str:
        with closing(PostgresSession(connection, Limits())) as session:
            session.run("CREATE TABLE IF NOT EXISTS airflow_ft_head (pipeline text)")
        return ""

    change(postgres_setup, "create", create)


@noticed_by("test_setup_can_be_repeated_and_prepare_finds_it", POSTGRES)
def setup_shows_the_password(change: Change) -> None:
    change(postgres_setup, "describe", lambda pipeline, plan, connection: iter([f"-- {connection.password}"]))


@noticed_by("test_a_proposed_table_has_the_columns", POSTGRES)
def a_proposed_table_has_its_key_alone(change: Change) -> None:
    create_table = postgres_proposal.create_table

    def shorter(table: str, sink: Any, columns: Any, *of: Any) -> str:
        return create_table(table, sink, pa.schema([columns.field("id")]), *of)

    change(postgres_proposal, "create_table", shorter)


# --- the tests --------------------------------------------------------------------------------------------------------


def play(wrong: Wrong, world: World) -> None:
    getattr(ParticipantConformance(), wrong.case)(world, **wrong.parameters)


@pytest.fixture
def target(request: pytest.FixtureRequest, system: str, name: str, tmp_path: Path) -> Target:
    if system == SQLITE:
        return File(tmp_path)
    database: Database = request.getfixturevalue(f"{system}_database")
    strategy = WRONG[name, system].strategy
    return PostgresTable(database, strategy) if system == POSTGRES else MySqlTable(database, strategy)


def of(*systems: str) -> list[Any]:
    return [
        pytest.param(name, system, id=f"{system}-{name}", marks=[pytest.mark.server] * (system != SQLITE))
        for name, system in WRONG
        if system in systems
    ]


def check(name: str, system: str, target: Target, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParticipantConformance, "places", (0, 1))
    WRONG[name, system].make(monkeypatch.setattr)
    with pytest.raises((Exception, pytest.fail.Exception)):
        play(WRONG[name, system], World(target, folder))


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "system"), of(SQLITE))
def test_it_is_noticed(name: str, system: str, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, system, target, tmp_path, monkeypatch)


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "system"), of(POSTGRES, MYSQL))
def test_it_is_noticed_of_a_server(
    name: str, system: str, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(name, system, target, tmp_path, monkeypatch)
