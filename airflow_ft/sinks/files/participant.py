"""Rows are prepared in a hidden folder and become visible by one rename (TWO_PHASE).

The decision log decides. A number decided COMMITTED is never aborted, and vice versa (I3), so commit and abort do not
compete here. A process that wakes up late must not show wrong rows: of an aborted number, or of an attempt that was not
counted. Nor may it show rows again after someone rightly deleted the checkpoint's folder. It can only show a complete
staged folder.

A process that settles a number first raises the head, and then removes the number's folders, of all attempts. A late
process looks at the head when its folder is complete, just before the rename. Either it finds a newer head and stops.
Or its folder existed before the head was raised and was removed: then the rename finds nothing.

What if the process dies, or sleeps and wakes up beside its successor, before ...

- the head is raised: nothing is left.
- its staged folder is complete (prepare): files without a manifest are left, under the attempt's name. A later
  attempt removes them and writes its own. The sleeper finds a newer head, or leaves a folder that no vote names.
- the vote is stored: a complete folder that no vote names is left; the same.
- the rename (commit): the counted folder is left, and the next one renames it. The sleeper's rename then finds
  nothing, or the checkpoint in its place, and it reads the marker.
- the renamed folder is synced: it is visible, but a power cut may undo it. The next one finds the manifest in the
  visible folder, and syncs; or renames again.
- the marker: the manifest in the visible folder says whose rows these are, and the next one writes the marker from it.
  Until then the head counts the number as delivered.
- the other folders of the number are removed: it is visible and proven; the next prepare removes them.
- the abort marker (abort): some folders are gone, and the next one removes the rest. An earlier rename is detected
  (AbortedHeuristicCommitError).

The counted folder may be lost (deleted by hand): then the rows are delivered from the log, in a folder of the attempt
that commits. Contents are equal, since they come from the frozen log; the marker names the attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import (
    AbortedHeuristicCommitError,
    AirflowFtError,
    SinkUnavailableError,
    StateConflictError,
    StoreBehindSinkError,
    UnfitTargetError,
    together,
)
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.orphans import Orphan, OrphanKind, PreparedEnding
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.votes import Outcome, Proof, Vote
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.memory import (
    Marker,
    check_adopter,
    check_epoch,
    check_marker,
    check_settled,
)
from airflow_ft.sinks.base.places import only_sink
from airflow_ft.sinks.files.columns import judged
from airflow_ft.sinks.files.ledger import Ledger, Owned
from airflow_ft.sinks.files.markers import checksum
from airflow_ft.sinks.files.ownership import OwnedFolder, is_foreign
from airflow_ft.sinks.files.spec import FilesSink
from airflow_ft.sinks.files.staged import Rank, Staged, others
from airflow_ft.sinks.refused import Refused

log = logging.getLogger(__name__)


def open_participant(plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader) -> Participant:
    """The participant of a plan: one folder. ConfigurationError when it has several, or names no place."""
    name, settings = only_sink(plan, "folder")
    sink = FilesSink.from_settings(plan.name, settings)
    return FilesParticipant(plan.name, Staged(Ledger.of(sink.folder, connection), sink, name), wal)


@dataclass
class FilesParticipant(OwnedFolder):
    """One folder, and the one sink that writes there. See `airflow_ft.protocol.participant.Participant`."""

    wal: WalReader

    # --- the protocol -------------------------------------------------------------------------------------------

    def prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """Raises the head, judges columns, and has all rows durably in a hidden folder when it returns."""
        notes: dict[str, Any] = {"folder": self.ledger.path(self.ledger.root), "epoch": fence.epoch}
        readers = [self.wal.open(segment) for segment in plan.segments]
        with self._translated_errors(plan):
            head = self._raised(fence, plan)
            if head.since and self._begins(plan):
                self.staged.remove(lambda number, _: number < head.since)
                head = self._mine(fence)
            marker = self._settled(plan, head, fence, exactly=False)
            if marker is not None:
                return notes
            before = self._before(plan, head)
            if problems := self.schema_problems(readers, before):
                raise together(problems)
            if self.ledger.files.exists(self.ledger.published(plan.number)):
                head = self._mine(fence)  # a newer owner may have published it meanwhile
                if self._settled(plan, head, fence, exactly=False) is None:
                    raise self._in_the_way(plan.number)
                return notes
            self._refuse_another_sink(plan)
            self.staged.remove(
                lambda number, rank: (
                    number < head.since or (rank < fence.rank and self._is_waste(number, plan.number, head))
                )
            )
            manifest = self._built(plan, fence, readers, before)
            self._refuse_another_sink(plan)
            self._require_mine(fence)
        return {**notes, "files": len(manifest["files"])}

    def commit(self, plan: Plan, fence: Fence, vote: Vote | None = None, *, set_aside: bool = False) -> Proof:
        """Renames what the counted attempt has prepared, or finds that the number is settled."""
        with self._translated_errors(plan):
            head = self._raised(fence)
            marker = self._settled(plan, head, fence, exactly=True)
            if marker is None:
                counted = (_epoch(vote), vote.prepared) if vote is not None else (0, 0)
                rank, manifest = self._prepared(plan, (counted, fence.rank))
                if manifest is None:
                    rank = fence.rank
                    log.warning("%s: checkpoint %d is not prepared here, so it is delivered from the write-ahead log",
                                self.name, plan.number)  # fmt: skip
                    dead_letters = Refused(self.wal.dead_letters(plan)) if set_aside else None
                    readers = [self.wal.open(each) for each in plan.segments]
                    manifest = self._built(plan, fence, readers, self._before(plan, head), dead_letters)
                marker = self._published(plan, fence, rank, manifest)
            existing = self.ledger.write_marker(plan.number, marker)
            self.staged.remove(lambda number, _: number == plan.number)
        return existing.proof(self.name, plan.number)

    def abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        """Remove what is prepared and write the abort marker, because ABORTED is decided."""
        with self._translated_errors(plan):
            try:
                head = self._raised(fence, plan)
            except UnfitTargetError:
                if self.ledger.pipeline() == fence.pipeline:
                    raise
                # Another owner. Prepare needs ownership, so this pipeline has nothing there, and adds nothing.
                return Proof(self.name, plan.number, Outcome.ABORTED, plan.digest, fence.epoch, {}, dict(detail))
            self._settled(plan, head, fence, exactly=False)
            self.staged.remove(lambda number, _: number == plan.number)
            existing = self.ledger.marker(plan.number)
            if existing is None and not self.heuristic(plan):
                tombstone = Marker(fence.installation, Outcome.ABORTED, *fence.rank, plan.digest, {}, dict(detail))
                existing = self.ledger.write_marker(plan.number, tombstone)
            if early := self.heuristic(plan):
                marked = existing is not None and existing.outcome is Outcome.COMMITTED
                marker = f" and {self.ledger.path(self.ledger.marker_uri(plan.number))}" if marked else ""
                raise AbortedHeuristicCommitError(
                    f"the checkpoint is ABORTED, but it cannot be rolled back: {early}",
                    remedy=f"Remove that folder{marker}, then run `airflow ft resume {plan.pipeline}`. A later"
                    " checkpoint delivers its rows, or they are computed again.",
                )
            if existing is None:
                raise SinkUnavailableError(
                    "another process changed the marker meanwhile.", code="changed_meanwhile", remedy="Retry."
                )
        return existing.proof(self.name, plan.number)

    def proof(self, plan: Plan) -> Proof | None:
        """The marker; None when there is none, which proves nothing."""
        with self._translated_errors(plan):
            marker = self.ledger.marker(plan.number) if self.ledger.has_been_of(plan.pipeline) else None
        if marker is None:
            return None
        check_marker(marker, plan, plan.installation)
        return marker.proof(self.name, plan.number)

    def forget(self, fence: Fence, floor: int) -> None:
        """Raises the floor, then prunes markers at or below it: who finds no marker reads the floor after that."""
        if floor <= 0:
            return
        with self._translated_errors():

            def raised(head: Owned | None) -> Owned:
                found = self._owned(head, fence)
                check_epoch(found, fence)
                return replace(found, floor=max(found.floor, floor))

            self.ledger.change(raised)
            self.ledger.prune(floor)

    def orphans(self, pipeline: str, installation: str) -> Sequence[Orphan]:
        """Tombstones and prepared folders of former owners past the last delivered number."""
        with self._translated_errors():
            head = self._head_of(pipeline)
            if head is None:
                return ()
            tombstones = [
                Orphan(number, "", OrphanKind.ABORTED, marker.installation, marker.tombstone)
                for number, marker in self.ledger.markers(head.last_delivered)
                if marker.outcome is Outcome.ABORTED and marker.installation != installation
            ]
            settled = {each.number for each in tombstones}
            return tombstones + [
                self._orphan(number, rank, manifest)
                for number, rank, manifest in others(self.staged, installation, head.last_delivered)
                if number not in settled
            ]

    def end_orphans(self, fence: Fence, ending: PreparedEnding | None, *, make_way: bool = False) -> None:
        """Raises the head above a former owner, who stays named in it; or drops what former owners have marked."""

        def raised(head: Owned | None) -> Owned:
            check_adopter(head, fence)
            found = self._owned(head, fence)
            mine = found.installation == fence.installation  # it was adopted since
            return found if mine else replace(found, epoch=fence.epoch, attempt=fence.attempt)

        with self._translated_errors():
            if (head := self._head_of(fence.pipeline)) is None:
                return
            if make_way:
                check_epoch(head, fence)
                for number, marker in list(self.ledger.markers(head.last_delivered)):
                    if is_foreign(marker, fence):
                        self.ledger.remove_marker(number)
            elif head.installation != fence.installation:
                self.ledger.change(raised)
                self._end_prepared(fence, ending, head.last_delivered)
                self.staged.remove(lambda _, rank: rank < fence.rank)

    def heuristic(self, plan: Plan) -> str:
        """Return whether its rows are visible because someone moved the folder."""
        with self._translated_errors(plan):
            where = self.ledger.published(plan.number)
            manifest = self.ledger.manifest(where) if self.ledger.has_been_of(plan.pipeline) else None
        return f"{self.ledger.path(where)} exists and shows {count_text(manifest['rows'], 'row')}." if manifest else ""

    def close(self) -> None:
        """Nothing is held between calls."""

    def _refuse_another_sink(self, plan: Plan) -> None:
        """By two paths (a symbolic link) two sinks of a pipeline may lead to one folder: each would take what the other
        has prepared, or published, for its own.
        """
        for number, rank in self.staged.all():
            manifest = self.staged.manifest(number, rank) if number == plan.number else None
            if manifest is not None and manifest["digest"] == plan.digest and manifest["sink"] != self.staged.name:
                raise UnfitTargetError(
                    f"sinks {manifest['sink']!r} and {self.staged.name!r} lead to one folder,"
                    f" {self.ledger.path(self.ledger.root)}.",
                    code="folder_shared",
                    remedy="Give each sink its own folder.",
                    sink=self.staged.name,
                    path=self.ledger.path(self.ledger.root),
                )

    def schema_problems(
        self, readers: Sequence[SegmentReader], before: Mapping[str, Any] | None
    ) -> list[AirflowFtError]:
        """All that speaks against the columns of these segments, behind rows of this layout."""
        mine = [reader for reader in readers if self.staged.name in reader.sinks()]
        schemas = dict.fromkeys(reader.schema(self.staged.name) for reader in mine)
        return list(judged(self.staged.sink, schemas, before, self.staged.name))

    def _before(self, plan: Plan, head: Owned) -> Mapping[str, Any] | None:
        return self.staged.layout_behind(plan.participant(self.name).predecessor, head.last_delivered)

    # --- what the steps share -----------------------------------------------------------------------------------

    def _settled(self, plan: Plan, head: Owned, fence: Fence, *, exactly: bool) -> Marker | None:
        """Return the marker that settles the number, or one made from the visible folder if a process died before its
        marker.
        """
        marker = self.ledger.marker(plan.number)
        if marker is None:
            marker = self._visible(plan.number)
        if head.last_delivered == head.inherited:  # by the former pipelines, and nothing yet by this one
            head = replace(head, last_delivered=0)
        check_settled(marker, head, plan, self.name, fence, exactly=exactly, look_again=lambda: self._mine(fence))
        return marker

    def _visible(self, number: int) -> Marker | None:
        manifest = self.ledger.manifest(self.ledger.published(number))
        if manifest is None:
            return None
        try:
            self.staged.finish(number, manifest)  # its process may have died before the sync
        except FileExistsError as error:
            raise self._in_the_way(number) from error
        return self._marker(number, manifest)

    def _marker(self, number: int, manifest: Mapping[str, Any]) -> Marker:
        detail = {"prepared": manifest["rank"], "files": len(manifest["files"]), **manifest["detail"]}
        detail["manifest"] = checksum(manifest)
        if manifest["files"]:
            detail["folder"] = self.ledger.path(self.ledger.published(number))
        counts = {self.staged.name: manifest["rows"]}
        epoch, attempt = manifest["rank"]
        return Marker(
            manifest["installation"], Outcome.COMMITTED, epoch, attempt, manifest["digest"], counts, detail
        )  # fmt: skip

    def _is_waste(self, number: int, mine: int, head: Owned) -> bool:
        """Return whether an older attempt's prepared rows of a number are orphans."""
        return number == mine or number <= head.floor or self.ledger.marker(number) is not None

    def _prepared(self, plan: Plan, ranks: Sequence[Rank]) -> tuple[Rank, dict[str, Any] | None]:
        for rank in ranks:
            try:
                manifest = self.staged.manifest(plan.number, rank)
            except StoreBehindSinkError:  # it is damaged: the rows are in the log
                continue
            if manifest is not None and manifest["digest"] == plan.digest:
                return rank, manifest
        return ranks[-1], None

    def _built(
        self,
        plan: Plan,
        fence: Fence,
        readers: Sequence[SegmentReader],
        before: Mapping[str, Any] | None,
        dead_letters: Refused | None = None,
    ) -> dict[str, Any]:
        try:
            return self.staged.build(plan, fence, readers, dead_letters, before)
        except BaseException as error:
            with suppress(OSError):
                self.staged.remove(lambda number, rank: (number, rank) == (plan.number, fence.rank))
            if isinstance(error, FileNotFoundError | FileExistsError):  # a newer attempt has removed it, or just does
                self._require_mine(fence)
            raise

    def _published(self, plan: Plan, fence: Fence, rank: Rank, manifest: Mapping[str, Any]) -> Marker:
        """Publish, unless another process was first. Return the marker to write."""
        self._require_mine(fence)  # I5: after the folder is whole, just before the rename
        existing = self._publish(plan.number, rank, manifest)
        if existing is None:
            return self._marker(plan.number, manifest)
        check_marker(existing, plan, fence.installation)
        return existing

    def _publish(self, number: int, rank: Rank, manifest: Mapping[str, Any]) -> Marker | None:
        """Publish the prepared folder. Return None, or the marker of another process that published first."""
        if not manifest["files"]:
            return None
        try:
            self.staged.publish(number, rank)
        except (FileExistsError, FileNotFoundError) as error:
            existing = self.ledger.marker(number) or self._visible(number)
            if existing is not None:
                return existing
            if isinstance(error, FileExistsError):
                raise self._in_the_way(number) from error
            what = "another process has just removed the prepared files."
            raise SinkUnavailableError(what, code="changed_meanwhile", remedy="Retry.") from error
        return None

    def _in_the_way(self, number: int) -> AirflowFtError:
        path = self.ledger.path(self.ledger.published(number))
        return UnfitTargetError(
            f"{path} exists, and airflow-ft did not write it.",
            code="path_occupied",
            remedy=f"Move {path} away, then retry.",
            sink=self.staged.name,
            path=path,
        )

    def _orphan(self, number: int, rank: Rank, manifest: Mapping[str, Any]) -> Orphan:
        folder = self.ledger.path(self.staged.uri(number, rank))
        visible = self.ledger.path(self.ledger.published(number))
        return Orphan(
            number,
            "",
            OrphanKind.PREPARED,
            manifest["installation"],
            f"{count_text(manifest['rows'], 'row')} in {folder}, invisible to readers",
            of=1,
            commit=f"rename {folder} to {visible}",
            roll_back=f"remove {folder}",
        )

    def _end_prepared(self, fence: Fence, ending: PreparedEnding | None, above: int) -> None:
        left = [each for each in others(self.staged, fence.installation, above) if self.ledger.marker(each[0]) is None]
        if left and ending is None:
            raise StateConflictError(
                f"{self.ledger.path(self.staged.uri(*left[0][:2]))} is prepared.",
                code="prepared_foreign",
                remedy="Decide about it with `--prepared commit` or `--prepared rollback`.",
            )
        for number, rank, manifest in left if ending is PreparedEnding.COMMIT else ():
            existing = self._publish(number, rank, manifest)
            self.ledger.write_marker(number, existing or self._marker(number, manifest))


def _epoch(vote: Vote) -> int:
    return int(vote.notes.get("epoch", 0))
