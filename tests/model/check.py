"""Lets Spin look at every schedule of a model: all of them with every rule on, and each rule switched off.

The models are the `.pml` files beside this one; what they say is in docs/model.md.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.servers.base import local_folder

HERE = Path(__file__).parent
MODELS = {
    "commit_point": 100_000,
    "two_phase": 100_000,
    "mapped": 2_000_000,
    "token": 100_000,
    "stream": 500_000,
    "modes": 20_000,
    "at_most_once": 100_000,
    "drain": 100_000,
    "savepoint": 500_000,
}
"""And how many states each has at the least with one call: else it has become one in which nothing happens."""
DEPTH = 10_000
UNPACKED = "servers/spin/usr/bin/spin"


@dataclass(frozen=True)
class Rule:
    """A rule of `rules.h`; without it, that many calls of each worker are enough for a counterexample in `model`."""

    name: str
    model: str
    calls: int = 1


RULES = (
    Rule("KIND", "commit_point"),
    Rule("TOMBSTONE_FIRST", "commit_point"),
    Rule("TOMBSTONE_KNOWN", "commit_point", calls=2),
    Rule("CARRY_OR_REWIND", "commit_point"),
    Rule("HEAD", "commit_point"),
    Rule("KILL", "commit_point"),
    Rule("SUBSUME_STAGED_ONLY", "commit_point", calls=2),
    Rule("TOKEN_AFTER_INIT", "commit_point"),
    Rule("TOKEN_RANK", "commit_point"),
    Rule("ONLY_OLDER", "two_phase"),
    Rule("TOUCH_NOTHING_DECIDED", "two_phase", calls=2),
    Rule("HEAD_AFTER_PLACE", "two_phase"),
    Rule("ATTEMPT_IN_DECISION", "two_phase", calls=2),
    Rule("NOTA_IS_NO_PROOF", "two_phase"),
    Rule("MARKER_IN_BRANCH", "two_phase"),
    Rule("TOMBSTONE_AFTER_ABORT", "two_phase", calls=2),
    Rule("LOAD_LOOKS_AGAIN", "mapped"),
    Rule("OWN_RANK_STAYS", "mapped"),
    Rule("VOTE_OF_NEWEST", "mapped"),
    Rule("WHOLE_LOOKS_FOR_ALL", "mapped", calls=2),
    Rule("KAFKA_NEVER_DECIDES", "token"),
    Rule("VANISHED_IS_LOST", "token"),
    Rule("TOKEN_BIRTH", "token"),
    Rule("COMMIT_FIRST", "stream"),
    Rule("CUT_BACK", "stream"),
    Rule("NEWEST_BASE", "stream"),
    Rule("BASE_AFTER_BEGIN", "stream"),
    Rule("BASE_AFTER_EPOCH", "stream"),
    Rule("CHAIN", "stream"),
    Rule("EPOCH_IN_LOG", "stream"),
    Rule("FENCED_ENDS", "stream"),
    Rule("NEEDS_STAGE", "stream"),
    Rule("ROOM", "stream"),
    Rule("DRIVER_CARRIES", "stream"),
    Rule("CARRY_WHILE_FULL", "stream"),
    Rule("TOMBSTONE_BEFORE_EXPIRED", "stream"),
    Rule("NO_EXPIRY_AFTER_DECISION", "stream"),
    Rule("END_WITH_EPOCH", "stream"),
    Rule("STOP_WHEN_SETTLED", "stream"),
    Rule("STOP_OF_THIS_RUN", "stream"),
    Rule("STOPS_READ_FIRST", "stream"),
    Rule("TOLD_WHEN_PUBLISHED", "stream"),
    Rule("CUT_BEFORE_LOOK", "stream"),
    Rule("REWOUND_IS_UNREAD", "stream", calls=2),
    Rule("GATE_LOOKS_TWICE", "stream", calls=2),
    Rule("PLAN_DECIDES", "modes"),
    Rule("MARKER_WITH_ROWS", "modes"),
    Rule("UNPROVEN_IS_SENT_AGAIN", "modes"),
    Rule("RECORD_AFTER_ACK", "modes"),
    Rule("ANEW_AT_END", "at_most_once"),
    Rule("END_AFTER_EPOCH", "at_most_once"),
    Rule("ONE_QUERY", "at_most_once"),
    Rule("LOST_ANSWER_ENDS", "at_most_once"),
    Rule("GIVEN_UP_FOR_GOOD", "at_most_once"),
    Rule("ONLY_UNPUBLISHED", "at_most_once"),
    Rule("EXPIRED_IS_CARRIED", "at_most_once"),
    Rule("WAITS_FOR_EARLIER", "at_most_once"),
    Rule("POSITION_IS_KEPT", "at_most_once"),
    Rule("DRAIN_IS_KNOWN", "drain"),
    Rule("REFUSED_IS_NO_DRAIN", "drain"),
    Rule("KEPT_BEFORE_DRAIN", "drain"),
    Rule("FAILS_BEHIND_DRAIN", "drain"),
    Rule("TOLD_CONFIRMED", "drain"),
    Rule("ANSWER_OF_EPOCH", "drain", calls=2),
    Rule("KEEPS_FOR_DRAIN", "drain", calls=2),
    Rule("ENDED_LAST", "drain"),
    Rule("TAKES_NONE_IN_VAIN", "drain"),
    Rule("CONFIRMED_ONLY", "savepoint"),
    Rule("METADATA_LAST", "savepoint"),
    Rule("GIVE_UP_FIRST", "savepoint"),
    Rule("EXAMINE_AGAIN", "savepoint"),
    Rule("OWN_COPY", "savepoint"),
    Rule("RESTORE_EPOCH", "savepoint"),
    Rule("MOVE_POSITION", "savepoint"),
    Rule("SWEEP_EPOCH_FIRST", "savepoint"),
)


@dataclass(frozen=True)
class Result:
    """What a search found. `error` is "" when no state breaks an assertion and no process waits for ever.

    `complete`: every reachable state was visited (a counterexample ends a search).
    """

    error: str
    states: int
    seconds: float
    complete: bool


class Verifier:
    """One model with fixed bounds and rules, compiled in `folder`; `large`: for many millions of states.

    `endless`: looks for a schedule that never ends, which takes some times longer, instead of a broken assertion.
    """

    def __init__(
        self, folder: Path, model: str, defines: Mapping[str, int], *, large: bool = False, endless: bool = False
    ) -> None:
        self._folder = folder
        self._options = ["-l"] if endless else []  # a cycle without progress; no state of these models is progress
        self._hash_bits = 26 if large else 22  # 2 ** bits slots of 8 bytes
        self._source = f"{model}.pml"
        for name in (self._source, "rules.h"):  # Spin puts the trail beside the model
            shutil.copy(HERE / name, folder)
        self._defines = [f"-D{name}={value}" for name, value in defines.items()]
        _run(folder, _spin(), "-a", *self._defines, self._source)
        kind = "-DNP" if endless else "-DSAFETY"  # SAFETY: end states and assertions
        _run(folder, "gcc", "-O2" if large else "-O0", "-w", kind, "-DCOLLAPSE", "-o", "pan", "pan.c")

    def search(self) -> Result:
        """Visits all states, or stops at the first error."""
        output = _run(self._folder, "./pan", *self._options, f"-m{DEPTH}", f"-w{self._hash_bits}")
        error = re.search(r"^pan:\d+: (.*) \(at depth \d+\)$", output, re.MULTILINE)
        errors = int(_number(r"errors: (\d+)", output))
        if (errors == 0) != (error is None):
            raise AssertionError(f"Spin said something unexpected:\n{output}")
        return Result(
            error=error.group(1) if error else "",
            states=int(float(_number(r"^\s*([\d.e+]+) states, stored", output))),
            seconds=float(_number(r"elapsed time ([\d.]+) seconds", output)),
            complete=errors == 0 and "Search not completed" not in output and "too small" not in output,
        )

    def story(self) -> str:
        """The counterexample that `search` found, a line a step."""
        return _run(self._folder, _spin(), "-t", "-p", "-g", *self._defines, self._source)


def verifier_without(rule: Rule, folder: Path) -> Verifier:
    """The rule's model with that rule switched off."""
    return Verifier(folder, rule.model, {"CALLS": rule.calls, rule.name: 0})


def rules_of_the_models() -> Mapping[str, str]:
    """What `rules.h` defines: names and what each says."""
    return dict(re.findall(r"^#ifndef (\w+)\s*/\* (.*) \*/$", (HERE / "rules.h").read_text(), re.MULTILINE))


def _spin() -> str:
    unpacked = local_folder() / UNPACKED
    return str(unpacked) if unpacked.exists() else shutil.which("spin") or _missing()


def _missing() -> str:
    raise FileNotFoundError("Spin is not installed: run `make install`.")


def _run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0 and "-t" not in command:  # telling a trail ends with the code of the failed assertion
        raise AssertionError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _number(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise AssertionError(f"Spin does not say {pattern!r}:\n{text}")
    return found.group(1)
