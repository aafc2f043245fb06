"""Mistakes that authors of sinks make, as changes of the sinks of examples/sinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Defect:
    """A change of the sink's text, and the case of the kit that notices it."""

    case: str
    changes: Sequence[tuple[str, str]]
    parameters: dict[str, Any] = field(default_factory=dict)
    kind: str = "shelf"


LEDGER = "class Ledger(DbApiLedger):\n"
PARTICIPANT = "    def _preflight(self):\n"
WRITE_MARKER = """
    def write_marker(self, plan, fence, outcome, counts, detail):
        if outcome {} "committed":
            super().write_marker(plan, fence, outcome, counts, detail)

"""
HEAD = """
    def head(self):
        from dataclasses import replace
        found = super().head()
        return found and replace(found, {})

"""
_LENIENT = """    def _is_settled(self, ledger, head, plan, fence, *, exactly):
        known = ledger.marker(plan.number) is not None
        return known or super()._is_settled(ledger, head, plan, fence, exactly=exactly)

"""
_DELETING = """    def abort(self, plan, fence, detail):
        with opened(self.path) as db:
            for table in self.tables.values():
                db.execute(f"DELETE FROM {table}")
            db.execute("DELETE FROM airflow_ft_ledger WHERE number = ?", (plan.number,))
        return super().abort(plan, fence, detail)

"""
DEFECTS = {
    "no marker is written": Defect(
        "test_to_commit_again_changes_nothing", [(LEDGER, LEDGER + WRITE_MARKER.format("!="))]
    ),
    "no tombstone is written": Defect(
        "test_an_aborted_number_never_comes", [(LEDGER, LEDGER + WRITE_MARKER.format("=="))]
    ),
    "rows and marker are committed one after the other": Defect(
        "test_a_killed_delivery_is_finished_by_the_next_process",
        [
            ('            db.execute("BEGIN IMMEDIATE")', "            pass"),
            ('            db.execute("COMMIT" if keep else "ROLLBACK")\n', ""),
        ],
        {"at": 40},
    ),
    "the head is not compared": Defect(
        "test_an_older_owner_is_fenced",
        [(LEDGER, LEDGER + HEAD.format("epoch=0, attempt=0"))],
        {"epoch": 1, "attempt": 9},
    ),
    "the epoch is not compared": Defect(
        "test_an_older_owner_is_fenced", [(LEDGER, LEDGER + HEAD.format("epoch=0"))], {"epoch": 2, "attempt": 1}
    ),
    "the floor is not raised": Defect(
        "test_a_number_that_was_aborted_and_forgotten_never_comes",
        [(LEDGER, LEDGER + "\n    def raise_floor(self, floor):\n        pass\n\n")],
    ),
    "the digest is not compared": Defect(
        "test_a_decision_log_from_a_backup_is_refused", [(PARTICIPANT, _LENIENT + PARTICIPANT)]
    ),
    "what was delivered last is not remembered": Defect(
        "test_it_remembers_what_was_delivered_last",
        [(LEDGER, LEDGER + "\n    def deliver_head(self, number):\n        pass\n\n")],
    ),
    "an abort deletes what is committed": Defect(
        "test_a_committed_number_is_not_aborted", [(PARTICIPANT, _DELETING + PARTICIPANT)]
    ),
    "counts are made up": Defect(
        "test_what_is_committed_is_visible_once_and_proven",
        [
            ("        return load_all(", "        return dict.fromkeys(self.tables, 1) if load_all("),
            ("reader, dead_letters, db)\n        )\n", "reader, dead_letters, db)\n        ) else {}\n"),
        ],
    ),
    "refused rows are tried again beside those that went in": Defect(
        "test_rows_that_are_set_aside_are_named_and_the_others_come",
        [('            self.db.execute("ROLLBACK TO rows")\n', "            pass\n")],
    ),
    "refused rows are left out without a word": Defect(
        "test_of_refused_rows_nothing_comes",
        [("INSERT INTO", "INSERT OR IGNORE INTO"), ('why = "" if count == rows.num_rows else', 'why = "" or "" and')],
        {"carries": True},
    ),
    "a trial is kept": Defect(
        "test_where_it_follows_nothing_is_visible_before_the_decision",
        [('"COMMIT" if keep else "ROLLBACK"', '"COMMIT"')],
    ),
    "segments of earlier checkpoints are left out": Defect(
        "test_a_checkpoint_of_several_segments_comes_as_one",
        [("self.tables, readers, lambda", "self.tables, readers[-1:], lambda")],
    ),
    "columns are not judged": Defect(
        "test_an_unknown_column_is_named_before_any_row_is_visible",
        [("yield from problems", "yield from ()")],
    ),
    "a table that is gone is taken for one that will be made": Defect(
        "test_a_dropped_table_is_refused_by_prepare", [("if not columns and not make:", "if False:")]
    ),
    "all pipelines are one": Defect(
        "test_it_remembers_what_was_delivered_last",
        [("Ledger(db, fence.pipeline,", 'Ledger(db, "all",'), ("Ledger(db, pipeline,", 'Ledger(db, "all",')],
    ),
    "NaN becomes NULL": Defect(
        "test_unsupported_values_are_refused_before_the_decision",
        [("    def unfit(self, rows):", "    def looked_at(self, rows):")],
        {"carries": True},
    ),
    "a failed statement is no marker": Defect(
        "test_an_error_while_it_reads_is_no_empty_memory",
        [
            (
                LEDGER,
                LEDGER
                + "\n    def marker(self, number):\n        try:\n            return super().marker(number)\n"
                + "        except sqlite3.Error:\n            return None\n\n",
            )
        ],
    ),
    "no marker is found": Defect(
        "test_what_is_committed_is_visible_once_and_proven",
        [("yield ledger if ledger.exists() else None", "yield None")],
    ),
}
_MEETS = "test_it_meets_later_numbers_when_it_wakes_up"
_BACK = ("test_no_key_goes_back_when_a_successor_continues", {"at": 103})
_COMMIT = '            store.execute("COMMIT")'
_CONTENT = "        content = version.content\n"
_OF_KEYS = {
    "the document is not compared": Defect(_MEETS, [(" AND text = ?", " AND ? IS NOT NULL")], {"step": "prepare"}),
    "versions are not compared": Defect(_BACK[0], [(" WHERE excluded.version > cards.version", "")], _BACK[1]),
    "versions begin again with each chunk": Defect(_BACK[0], [("first + chunk.first", "first")], _BACK[1]),
    "a retry has versions of its own": Defect(_BACK[0], [(' and kept["plan"] != plan.digest', "")], _BACK[1]),
    "a delete leaves no tombstone": Defect(
        _BACK[0],
        [(_COMMIT, '            store.execute("DELETE FROM cards WHERE value IS NULL")\n' + _COMMIT)],
        _BACK[1],
    ),
    "deletes are left out": Defect(
        "test_a_delete_deletes",
        [("        if at not in chunk.refused:", "        if at not in chunk.refused and written[at]:")],
    ),
    "deletes are not verified": Defect(
        "test_verify_finds_a_deleted_key_that_is_back",
        [
            ("            for _, key, value in cards(self.sink", "            for _, key, value in _written(self.sink"),
            (
                "# 3. The participant.",
                "def _written(*of):\n    return (card for card in cards(*of) if card[2] is not None)\n",
            ),
        ],
    ),
    "the first column is the key": Defect(
        "test_each_column_of_a_key_counts",
        [("enumerate(keys(sink.parts, chunk", "enumerate(keys(sink.parts[:1], chunk")],
    ),
    "all sinks write into the first one's drawer": Defect(
        "test_sinks_of_one_participant_keep_their_own_keys",
        [("sink, before = self.sinks[chunk.sink],", "sink, before = next(iter(self.sinks.values())),")],
    ),
    "all participants have one document": Defect(
        "test_participants_of_one_database_are_apart",
        [
            ("execute(sql, (pipeline, self.participant))", 'execute(sql, (pipeline, ""))'),
            ("self.fence.pipeline, self.documents.participant)", 'self.fence.pipeline, "")'),
        ],
        {"other": "another"},
    ),
    "NaN has no text": Defect(
        "test_unsupported_values_are_refused_before_the_decision",
        [("for wrong, why in without_text", "for wrong, why in () and without_text")],
        {"carries": False},
    ),
}
_OF_TABLES = {
    "it commits onto the newest version": Defect(
        _MEETS,
        [(_CONTENT, "        version = Version.newest(self.place)\n" + _CONTENT)],
        {"step": "commit"},
    ),
    "it removes files that a version names": Defect(
        "test_what_is_committed_is_visible_once_and_proven",
        [("    def _remove(self):", "    def discard(self):\n        self._remove()\n\n    def _remove(self):")],
    ),
    "it forgets other pipelines": Defect(
        "test_pipelines_of_similar_names_are_apart",
        [('content["documents"] | {group: ledger.text}', "{group: ledger.text}")],
        {"names": ("-1", "_1")},
    ),
    "it forgets files": Defect(
        "test_what_is_committed_is_visible_once_and_proven",
        [('files=content["files"] + staged.files', "files=staged.files")],
    ),
    "it tries no rows": Defect(
        "test_of_refused_rows_nothing_comes",
        [("    def _remove(self):", "    def try_out(self, readers):\n        pass\n\n    def _remove(self):")],
        {"carries": False},
    ),
    "it leaves files of refused rows": Defect(
        "test_a_refused_delivery_leaves_no_files", [("        if self.folder:\n", "        if False:\n")]
    ),
    "it always adds columns": Defect(
        "test_an_unknown_column_is_named_before_any_row_is_visible", [("evolves=sink.schema_evolution", "evolves=True")]
    ),
    "it writes refused rows": Defect(
        "test_of_refused_rows_nothing_comes",
        [("return rows, self._empty(rows)", "return rows, {}")],
        {"carries": True},
    ),
}
DEFECTS |= {
    **{name: replace(each, kind="drawer") for name, each in _OF_KEYS.items()},
    **{name: replace(each, kind="binder") for name, each in _OF_TABLES.items()},
}
