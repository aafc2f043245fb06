"""Continue a changed job with the state of an earlier one: operators were added, left out or moved.

Spark finds the state of an operator only by its number, and fails when another operator has that number now. This
module compares the operators of the job's plan (`airflow_ft.jobs.uids`) with those in the state before anything is
computed, and changes the attempt's copy of the location to fit. The original location is not changed, and stays the
pipeline's base until a checkpoint is published from the copy. So a crash or an error on the way changes nothing.

Operators that continue must have the keys, functions and settings that they had (`airflow_ft.spark.state.meaning`).

- moved: its folder and the number in its files are changed;
- left out: its folder is dropped, where that was allowed (`allow_non_restored_state`);
- added: it gets empty state stores from Spark: an empty micro-batch of the same query in a separate location, which is
  never published.

Two operators are the same when they have the same uid and kind. One that had no uid is the same when it is the only
one of its kind, or when nothing was added, left out or moved. Anything else would be a guess, and is refused.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from airflow_ft.jobs.uids import Identity
from airflow_ft.protocol.errors import ConfigurationError, StageError, StateMeaningError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.state import schema_paths
from airflow_ft.spark.state.location_files import OFFSETS, add_entry, entry, keep, note, offsets_line
from airflow_ft.spark.state.locations import SparkLocation, by_use, location_root, set_places
from airflow_ft.spark.state.meaning import Memory, differences, meaning_of
from airflow_ft.spark.state.operators import identities, remember, remembered
from airflow_ft.spark.state.reset import write_source_positions
from airflow_ft.spark.state.settings import set_unique_ids, unique_ids
from airflow_ft.wal.checksums import read_checked
from airflow_ft.wal.filesystem import FileSystem, filesystem

RESTORED_FILE = "airflow_ft_restored.json"
"""In a restored location: the batch that it was restored at, and whether state may be left behind there."""
_VERSION_1 = re.compile(r"^(\.?)1((?:_[^.]+)*)\.(zip|delta)((?:\.crc)*)$")
_BORN = {"zip": "zip", "delta": "snapshot"}
_MOVED = "airflow_ft_moved"
_KINDS = {
    "stateStoreSave": "an aggregation",
    "sessionWindowStateStoreSaveExec": "an aggregation by session windows",
    "dedupe": "dropDuplicates",
    "dedupeWithinWatermark": "dropDuplicatesWithinWatermark",
    "symmetricHashJoin": "a join of two streams",
    "applyInPandasWithState": "applyInPandasWithState",
    "flatMapGroupsWithState": "flatMapGroupsWithState",
    "globalLimit": "limit",
    "transformWithStateExec": "transformWithState",
    "transformWithStateInPySparkExec": "transformWithState",
    "transformWithStateInPandasExec": "transformWithStateInPandas",
}

log = logging.getLogger("airflow_ft.spark")


@dataclass(frozen=True, slots=True)
class Evolution:
    """Changes to the operators of a location. `kept`: new numbers by old numbers. `dropped`: old numbers. `added`: new
    numbers.
    """

    kept: Mapping[int, int]
    dropped: tuple[int, ...]
    added: tuple[int, ...]


def evolution(
    pipeline: str, base: SparkPosition | None, plan: Sequence[Identity], memory: Memory | None = None
) -> Evolution | None:
    """Return the changes to a copy of `base` that let a job with this plan continue there; None: no changes.

    `memory`: the meaning of the state of the job's operators, in the order of the plan; None: unknown.

    Raises:
        ConfigurationError: the changes are impossible or a guess, or would drop state without permission.
        StateMeaningError: the job gives state another meaning than it has.
    """
    if base is None or base.batch < 0:
        return None
    location = SparkLocation.of(base, pipeline, location_root(base.location))
    before = identities(location)
    remembered_meaning = remembered(location)
    if _kinds(plan) != _kinds(before) and (remembered_meaning is None or _kinds(remembered_meaning) == _kinds(plan)):
        # No plan was kept, as in mode AT_MOST_ONCE: Spark compares them. Or it has made other operators of such a plan,
        # and does so again.
        if remembered_meaning is not None:
            _compare(location, remembered_meaning, {number: number for number in range(len(plan))}, memory)
        return None
    kept = _matched(pipeline, before, plan)
    _compare(location, before, kept, memory)
    dropped = tuple(number for number in range(len(before)) if number not in kept)
    added = tuple(number for number in range(len(plan)) if number not in kept.values())
    if dropped and not may_be_left(location):
        raise ConfigurationError(
            f"the pipeline has state of {_names(before, dropped)}, but the job has no such operator.",
            code="operator_missing",
            pipeline=pipeline,
            remedy="Put the operator back (with its uid). Or drop its state: stop the pipeline, take a savepoint"
            f" (`airflow ft savepoint trigger {pipeline}`), and run `airflow ft savepoint restore PATH"
            " --allow-non-restored-state`.",
            operators=[before[number].uid or number for number in dropped],
        )
    if not dropped and not added and all(old == new for old, new in kept.items()):
        return None
    for number in dropped:
        log.warning("dropping the state of %s: the job has no such operator", _name(before[number], number))
    for number in added:
        log.info("%s is new and starts without state", _name(plan[number], number))
    for old, new in kept.items():
        if old != new:
            log.info("%s had number %d before", _name(plan[new], new), old)
    return Evolution(kept, dropped, added)


def is_known(base: SparkPosition | None, plan: Sequence[Identity], memory: Memory | None) -> bool:
    """Return whether the location at `base` says that its state belongs to just this plan and has this meaning."""
    if base is None or base.batch < 0:
        return True
    location = SparkLocation.of(base)
    if (remembered(location) or ()) != tuple(plan):
        return False
    meaning = meaning_of(location)
    return meaning == memory or (meaning is not None and memory is not None and meaning.is_same(memory))


def may_be_left(location: SparkLocation) -> bool:
    """Return whether the location was just restored with permission to leave state behind."""
    return _is_allowed(location, "allow_non_restored_state")


def _is_allowed(location: SparkLocation, what: str) -> bool:
    noted = note(location.uri, RESTORED_FILE)
    return noted is not None and bool(noted[what]) and noted["batch"] == location.batch


def note_restored(
    location: SparkLocation, allow_non_restored_state: bool, *, allow_changed_state: bool = False
) -> None:
    """Note for a restored location what its job may do to the state.

    allow_non_restored_state: leave some of it behind. allow_changed_state: give it another meaning.
    """
    keep(
        location.uri,
        RESTORED_FILE,
        {
            "allow_non_restored_state": allow_non_restored_state,
            "allow_changed_state": allow_changed_state,
            "batch": location.batch,
        },
    )


def carry_out(
    step: Evolution, location: SparkLocation, plan: Sequence[Identity], bear: Callable[[SparkLocation], None]
) -> None:
    """Changes an attempt's own copy. `bear` has Spark compute an empty micro-batch 0 of the job in a location."""
    files = filesystem(location.uri)
    ids = unique_ids(location.uri, location.batch)
    _move(files, location, step)
    kept_ids = {str(step.kept[int(old)]): each for old, each in ids.items() if int(old) in step.kept}
    if step.added:
        born = _born(files, location, bear)
        kept_ids |= _adopt(files, born, location, step.added)
        files.remove_tree(born.uri)
    if ids or kept_ids:
        set_unique_ids(location.uri, location.batch, kept_ids)
    remember(location, plan)
    found = _kinds(identities(location))
    if found != _kinds(plan):
        raise StageError(
            f"the new state does not fit: the job's plan has {_kinds(plan)}, but Spark has created {found}. Nothing was"
            " changed.",
            code="state_not_rewritten",
            pipeline=location.pipeline,
            remedy="Report it, with the job's plan (`frame.explain(True)`).",
            planned=_kinds(plan),
            found=found,
        )


def _compare(
    location: SparkLocation, before: Sequence[Identity], kept: Mapping[int, int], memory: Memory | None
) -> None:
    """Refuse another meaning of the operators that continue, unless it is allowed or may come from Spark itself."""
    meaning = meaning_of(location)
    if meaning is None:
        if kept:
            log.info("the meaning of the stored state is unknown; the meaning in this job counts from now on")
        return
    if memory is None or len(meaning.operators) != len(before):
        return
    changed = [
        f"{_name(before[old], old)}: {difference}"
        for old, new in sorted(kept.items())
        if new < len(memory.operators)
        for difference in differences(meaning.operators[old], memory.operators[new])
    ]
    if not changed:
        return
    if not meaning.is_comparable(memory):
        log.warning(
            "Spark %s makes another plan than Spark %s did; assuming that the state has the same meaning: %s",
            memory.spark,
            meaning.spark,
            "; ".join(changed),
        )
    elif _is_allowed(location, "allow_changed_state"):
        log.warning("the state gets another meaning, which the restore allowed: %s", "; ".join(changed))
    else:
        raise StateMeaningError(
            f"the job gives its state another meaning. {'; '.join(changed)}.",
            pipeline=location.pipeline,
            remedy="Undo the change. Or give the changed operator a new uid (airflow_ft.jobs.uids.uid): it starts"
            f" without state. Or drop all state (`airflow ft reset-state {location.pipeline}`). Put a constant that"
            " differs from run to run into job_args, whose values are not compared. To continue with the state as it"
            f" is, stop the pipeline, take a savepoint (`airflow ft savepoint trigger {location.pipeline}`), and run"
            " `airflow ft savepoint restore PATH --allow-changed-state`.",
            changed=changed,
        )


def _matched(pipeline: str, before: Sequence[Identity], plan: Sequence[Identity]) -> dict[int, int]:
    """New numbers by old ones."""
    names = {each.uid: number for number, each in enumerate(before) if each.uid}
    matched: dict[int, int] = {}
    for new, each in enumerate(plan):
        old = names.get(each.uid) if each.uid else None
        if old is None:
            continue
        if before[old].kind != each.kind:
            raise ConfigurationError(
                f"the stateful operator {each.uid!r} was {_kind(before[old])}, and is now {_kind(each)}, which cannot"
                " use its state.",
                code="operators_unmatched",
                pipeline=pipeline,
                remedy="Give the new operator another uid. It starts without state.",
                uid=each.uid,
                before=_kind(before[old]),
                after=_kind(each),
            )
        matched[old] = new
    old_ones = [n for n in range(len(before)) if n not in matched and not before[n].uid]
    new_ones = [n for n in range(len(plan)) if n not in matched.values()]
    olds = Counter(before[n].kind for n in old_ones)
    news = Counter(plan[n].kind for n in new_ones)
    unchanged = _kinds(before) == _kinds(plan)
    for kind in olds:
        if olds[kind] == 1 == news[kind] or (unchanged and olds[kind] == news[kind]):
            those = [n for n in new_ones if plan[n].kind == kind]
            matched |= dict(zip([n for n in old_ones if before[n].kind == kind], those, strict=True))
        elif news[kind]:
            raise ConfigurationError(
                "the job has changed, and its operators cannot be matched to their state. Operators without a known uid"
                f" ({_kind(Identity(kind))}): {olds[kind]} have state, and the job has {news[kind]}.",
                code="operators_unmatched",
                pipeline=pipeline,
                remedy="Undo the change. Name the operators (airflow_ft.jobs.uids.uid) and let a checkpoint complete."
                " Then change the job.",
                kind=_kind(Identity(kind)),
                before=olds[kind],
                after=news[kind],
            )
    return matched


def _move(files: FileSystem, location: SparkLocation, step: Evolution) -> None:
    state, aside = files.uri(location.uri, "state"), files.uri(location.uri, _MOVED)
    moved = {old: new for old, new in step.kept.items() if old != new}
    for old, new in moved.items():
        files.link_tree(files.uri(state, str(old)), files.uri(aside, str(new)), lambda _: True)
    for old in (*step.dropped, *moved):
        files.remove_tree(files.uri(state, str(old)))
    for old, new in moved.items():
        target = files.uri(state, str(new))
        files.link_tree(files.uri(aside, str(new)), target, lambda name: not _holds_number(name))
        for name in filter(lambda each: _holds_number(PurePosixPath(each)), files.tree(files.uri(aside, str(new)))):
            if not name.endswith(".crc"):
                text = read_checked(files, files.uri(aside, str(new), *name.split("/"))).decode()
                files.write(files.uri(target, *name.split("/")), _renumbered(text, old, new).encode())
    if moved:
        files.remove_tree(aside)


def _holds_number(name: PurePosixPath) -> bool:
    """Return whether a file of an operator, by its name in the operator's folder, says which number that has."""
    return name.parts[0] == "_metadata"


def _renumbered(text: str, old: int, new: int) -> str:
    """Line 1 is the format, line 2 JSON."""
    version, _, data = text.partition("\n")
    metadata: dict[str, Any] = json.loads(data)
    metadata["operatorInfo"]["operatorId"] = new
    for store in metadata.get("stateStoreInfo", ()):
        if paths := store.get("stateSchemaFilePaths"):
            store["stateSchemaFilePaths"] = [
                re.sub(rf"/state/{old}/_stateSchema/", f"/state/{new}/_stateSchema/", path) for path in paths
            ]
    return f"{version}\n{json.dumps(metadata, separators=(',', ':'), ensure_ascii=False)}"


def _born(files: FileSystem, location: SparkLocation, bear: Callable[[SparkLocation], None]) -> SparkLocation:
    """Return a location in which Spark computed micro-batch 0 of the job without a row, from the positions of
    `location`.
    """
    born = SparkLocation(location.root, location.pipeline, f"{location.uri}-born", -1)
    starts = write_source_positions(files, location, born)
    if (places := location.places()) is not None:
        set_places(born, places)
    lines = by_use(born, [offsets_line(start) for start in starts])
    add_entry(born.uri, OFFSETS, 0, replace(entry(location.uri, OFFSETS, location.batch), lines=lines))
    files.write(files.uri(born.uri, "metadata"), read_checked(files, files.uri(location.uri, "metadata")))
    bear(born)
    if not born.is_committed(0):
        raise StageError(
            "Spark has not created empty state for the new operators. Nothing was changed.",
            code="state_not_rewritten",
            pipeline=location.pipeline,
            remedy="Read Spark's lines above.",
        )
    return born


def _adopt(files: FileSystem, born: SparkLocation, location: SparkLocation, numbers: Sequence[int]) -> dict[str, Any]:
    """Takes over the empty stores of operators; the unique ids of these in the commit of their birth."""
    for number in numbers:
        source, target = (files.uri(each.uri, "state", str(number)) for each in (born, location))
        for name in sorted(files.tree(source), key=lambda each: _holds_number(PurePosixPath(each))):  # schemas first
            *folders, last = name.split("/")
            data = files.read(files.uri(source, *folders, last))
            if _holds_number(PurePosixPath(name)):
                if last.endswith(".crc"):
                    continue
                data = schema_paths.rewritten(files, data.decode(), location.uri).encode()
            elif match := _VERSION_1.match(last):
                hidden, unique, kind, checksums = match.groups()
                last = f"{hidden}{location.batch + 1}{unique}.{_BORN[kind]}{checksums}"
            files.write(files.uri(target, *folders, last), data)
    ids = unique_ids(born.uri, 0)
    return {str(number): ids[str(number)] for number in numbers if str(number) in ids}


def _kinds(operators: Sequence[Identity]) -> list[str]:
    return [each.kind for each in operators]


def _names(operators: Sequence[Identity], numbers: Sequence[int]) -> str:
    return " and ".join(_name(operators[number], number) for number in numbers)


def _name(operator: Identity, number: int) -> str:
    return f"operator {operator.uid!r} ({_kind(operator)})" if operator.uid else f"operator {number}, {_kind(operator)}"


def _kind(operator: Identity) -> str:
    return _KINDS.get(operator.kind, operator.kind)
