"""Jobs with several stateful operators, which change from run to run, without Spark: what each operator has as state.

A job is a word, each letter an operator with that uid, the nearest to the sink first: "cd" is a count over distinct
items. Spark knows operators by their place alone. So the state of each says whose it is, since which item, and with
which micro-batch it was written; whoever computes the next one looks whether that is its own.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_ft.jobs.uids import Identity
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import RunKey, SparkPosition
from tests.simulation.source import empties

if TYPE_CHECKING:
    from tests.simulation.world import World

KINDS = {"c": "stateStoreSave", "d": "dedupe", "j": "symmetricHashJoin"}
BORN = "-born"
_EMPTY = "-"  # in place of the item since which an operator has state


def has_no_operator(error: BaseException) -> bool:
    """Whether a run was refused because its job has no operator for some of the state."""
    return isinstance(error, ConfigurationError) and error.code == "operator_missing"


class Operators:
    """Those of a world's jobs; `may_leave`: positions at which whoever restored them has allowed to leave state."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.may_leave: set[SparkPosition] = set()

    def of(self, run: RunKey) -> str:
        """The job of a run; the one that heals all has the last one."""
        jobs, letter = self._world.scenario.jobs, run.run_id[-1]
        return (jobs[-1] if letter == "Z" else jobs[(ord(letter) - ord("A")) % len(jobs)]) if jobs else ""

    def plan(self, job: str) -> tuple[Identity, ...]:
        """See `airflow_ft.jobs.uids.plan_of`."""
        return tuple(Identity(KINDS[uid], uid) for uid in job)

    def begin(self, uri: str) -> None:
        """What Spark writes into a new location."""
        files = self._world.wal.files.setdefault(uri, {})
        files.setdefault("metadata", b'{"id":"1"}')
        files.setdefault("sources/0/0", b'\0v1\n{"orders":{"0":0}}')

    def bear(self, uri: str, job: str) -> None:
        """Micro-batch 0 of a job: empty state."""
        wal = self._world.wal
        wal.states[uri][0] = ""
        for number, uid in enumerate(job):
            self._write(uri, number, uid, 0, _EMPTY)

    def advance(self, uri: str, batch: int, job: str) -> None:
        """A micro-batch is computed: each operator goes on with its own state of the one before."""
        states = self._world.wal.states[uri]
        for number, uid in enumerate(job):
            found = self._read(uri, number, batch - 1)
            if found is None and states.get(batch - 1):
                self._world.kernel.violate("I10", f"operator {uid} finds no state in {uri} before batch {batch}")
            held, since, variant = found or (uid, _EMPTY, "")
            kind = self._kind(uri, number)
            if held != uid or kind not in (None, (number, KINDS[uid])):
                self._world.kernel.violate("I1", f"operator {uid} of {uri} goes on with the state of {held}, {kind}")
            if since != _EMPTY and variant != states[batch - 1]:
                self._world.kernel.violate("I1", f"operator {uid} of {uri} goes on with {variant}, not {states}")
            item = batch - empties(states[batch])
            self._write(uri, number, uid, batch, str(item) if since == _EMPTY else since)

    def opened(self, base: SparkPosition | None, uri: str, batch: int, job: str) -> None:
        """An attempt has its location: what an operator had is there still, and nothing else was left behind."""
        had = self._since(base.location, base.batch) if base is not None and job else {}
        has = self._since(uri, batch)
        for uid in job:
            if uid in had and has.get(uid) != had[uid]:
                self._world.kernel.violate("I10", f"{uid} had state since {had[uid]} at {base}, and now {has.get(uid)}")
        if set(had) - set(job) and base not in self.may_leave:
            self._world.kernel.violate(
                "I10", f"{job} goes on from {base}, which has {had}, and nobody has allowed that"
            )

    def refused(self, base: SparkPosition | None, job: str) -> None:
        """A run is refused because its job lacks an operator: not where that was allowed, or none is lacking."""
        had = self._since(base.location, base.batch) if base is not None else {}
        if not set(had) - set(job) or base in self.may_leave:
            self._world.kernel.violate("I9", f"{job} was refused at {base}, which has {had}")

    def _since(self, uri: str, batch: int) -> dict[str, str]:
        """The operators that have state behind a micro-batch: since which item."""
        found = [self._read(uri, number, batch) for number in range(len(KINDS))]
        return {entry[0]: entry[1] for entry in found if entry is not None}

    def _read(self, uri: str, number: int, batch: int) -> tuple[str, str, str] | None:
        files = self._world.wal.files.get(uri, {})
        for kind in ("delta", "snapshot"):
            if data := files.get(f"state/{number}/0/{batch + 1}.{kind}"):
                uid, since, variant = data.decode().split(" ")
                return uid, since, variant
        return None

    def _kind(self, uri: str, number: int) -> tuple[int, str] | None:
        data = self._world.wal.files.get(uri, {}).get(f"state/{number}/_metadata/metadata")
        if data is None:
            return None
        content = json.loads(data.decode().partition("\n")[2])["operatorInfo"]
        return content["operatorId"], content["operatorName"]

    def _write(self, uri: str, number: int, uid: str, batch: int, since: str) -> None:
        files, states = self._world.wal.files.setdefault(uri, {}), self._world.wal.states[uri]
        files[f"state/{number}/0/{batch + 1}.delta"] = f"{uid} {since} {states[batch]}".encode()
        metadata = {
            "operatorInfo": {"operatorId": number, "operatorName": KINDS[uid]},
            "stateStoreInfo": [{"storeName": "default", "numPartitions": 2}],
        }
        files.setdefault(f"state/{number}/_metadata/metadata", f"v1\n{json.dumps(metadata)}".encode())
