"""Compare the folder's files with the delivered ones: by names, sizes and checksums from the manifest.

The manifest is beside the files, and its own checksum in the marker. So a missing or changed file is reported by name.
A copy of a delivered file in a place that readers see is reported as duplicated rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkUnavailableError, StoreBehindSinkError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.verify import Delivered, Difference, Sent, SinkReport, by_target, expected_rows
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.files.failures import translated_errors
from airflow_ft.sinks.files.ledger import Ledger
from airflow_ft.sinks.files.markers import checksum
from airflow_ft.sinks.files.spec import FilesSink

_CHUNK = 1 << 20


def verify(
    delivered: Sequence[Delivered], plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader
) -> list[SinkReport]:
    """One report a folder. SinkUnavailableError, SinkAccessError: nothing could be compared."""
    sent = by_target(delivered, plan.name, lambda given: FilesSink.from_settings(plan.name, given).folder)
    with translated_errors(plan.name, participant=plan.name):
        return [_verify(of_folder, plan.name, folder, connection) for folder, of_folder in sent.items()]


def _verify(sent: Sequence[Sent], participant: str, folder: str, connection: ConnectionInfo) -> SinkReport:
    ledger = Ledger.of(folder, connection)
    if not ledger.files.exists(ledger.root):
        raise SinkUnavailableError(
            f"{folder} does not exist.",
            code="folder_missing",
            remedy=f"Restore {folder}, or mount its disk.",
            path=folder,
        )
    report = SinkReport.begun(participant, (name for _, name in sent), folder, [each for each, _ in sent])
    there = _seen(ledger.files.tree(ledger.root))
    wanted: dict[str, tuple[int, Mapping[str, Any]]] = {}
    differences: list[Difference] = []
    notes: list[str] = []
    for each, name in sent:
        rows = expected_rows([each], name)
        manifest = _manifest(ledger, each)
        if manifest is None and rows:
            where = ledger.label(each.plan.number)
            what = ("its manifest is gone or was changed",)
            differences.append(Difference(each.plan.number, where, rows, what))
        for file in manifest["files"] if manifest else ():
            place = f"{ledger.label(each.plan.number)}/{file['path']}"
            wanted[place] = (each.plan.number, file)
            if why := _wrong(ledger, place, file, there):
                differences.append(Difference(each.plan.number, place, file["rows"], (why,)))
    doubled, copies = _copies(ledger, wanted, there)
    notes += [f"{place} is a copy of a delivered file" for place in copies]
    return replace(
        report,
        missing=sum(difference.rows for difference in differences),
        repeated=doubled,
        differences=tuple(differences),
        notes=tuple(notes),
    )


def _seen(tree: Mapping[str, int]) -> dict[str, int]:
    """The files that readers list."""
    return {name: size for name, size in tree.items() if not any(part[0] in "._" for part in name.split("/"))}


def _manifest(ledger: Ledger, each: Delivered) -> dict[str, Any] | None:
    """Return the manifest of the visible folder, if it agrees with plan and proof."""
    found = _intact(ledger, each.plan.number)
    if found is None or found["digest"] != each.plan.digest:
        return None
    said = each.proof.detail.get("manifest") if each.proof is not None else None
    return found if said in (None, checksum(found)) else None


def _intact(ledger: Ledger, number: int) -> dict[str, Any] | None:
    try:
        return ledger.manifest(ledger.published(number))
    except StoreBehindSinkError:  # it is damaged
        return None


def _wrong(ledger: Ledger, place: str, file: Mapping[str, Any], there: Mapping[str, int]) -> str:
    if place not in there:
        return "it is gone"
    if there[place] != file["bytes"]:
        return f"it has {count_text(there[place], 'byte')}; {file['bytes']:,} were delivered"
    return "" if _checksum(ledger, place) == file["sha256"] else "it was changed: its checksum differs"


def _copies(
    ledger: Ledger, wanted: Mapping[str, tuple[int, Mapping[str, Any]]], there: Mapping[str, int]
) -> tuple[int, list[str]]:
    """Rows and names of files that equal a delivered one, in another place. Files of other checkpoints are none."""
    sizes = {file["bytes"] for _, file in wanted.values()}
    suspects = [place for place in sorted(there) if there[place] in sizes and place not in wanted]
    if not suspects:
        return 0, []
    known = {file["sha256"]: int(file["rows"]) for _, file in wanted.values()}
    folders = {place.partition("/")[0] for place in suspects} - {place.partition("/")[0] for place in wanted}
    own = set(_of_other_numbers(ledger, folders))
    found = {place: known.get(_checksum(ledger, place)) for place in suspects if place not in own}
    return sum(rows or 0 for rows in found.values()), [place for place, rows in found.items() if rows is not None]


def _of_other_numbers(ledger: Ledger, folders: Collection[str]) -> Iterable[str]:
    if not folders:
        return
    for number in ledger.visible():
        manifest = _intact(ledger, number) if ledger.label(number) in folders else None
        if manifest is not None and manifest["number"] == number:
            for file in manifest["files"]:
                yield f"{ledger.label(number)}/{file['path']}"


def _checksum(ledger: Ledger, place: str) -> str:
    hashed = hashlib.sha256()
    with ledger.files.open(ledger.files.uri(ledger.root, *place.split("/"))) as file:
        while chunk := file.read(_CHUNK):
            hashed.update(chunk)
    return hashed.hexdigest()
