"""What the demonstration found, as a page for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tools.demo.killer import Kill

KILLS_EXPECTED = 2  # a driver and a commit
SHOWN = 8  # failures on the page; the JSON has all


@dataclass(frozen=True)
class Report:
    """Numbers of one demonstration. `verdict` is the judge's (`tools.demo.judge.Verdict.to_json`).

    `promises` has by system what its sink promises.
    """

    run_state: str
    rows_read: int
    checkpoints: int
    deliveries: int
    verdict: Mapping[str, Any]
    kills: tuple[Kill, ...]
    seconds: Mapping[str, float]
    airflow: Mapping[str, str] | None = None
    kills_expected: int = KILLS_EXPECTED
    promises: Mapping[str, str] = field(default_factory=dict)

    @property
    def kills_survived(self) -> int:
        """Kills that hit an unfinished checkpoint."""
        return sum(kill.counts for kill in self.kills)

    @property
    def _compared(self) -> Mapping[str, Mapping[str, Any]]:
        return {"mysql": self.verdict["mysql"], "kafka": self.verdict["kafka"], **self.verdict.get("copies", {})}

    @property
    def failures(self) -> list[str]:
        """Why this is no success; empty when all is exact."""
        found = [] if self.run_state == "success" else [f"the DAG run ended as {self.run_state}"]
        for where, result in self._compared.items():
            if result["duplicates"] or result["missing"] or result["foreign"]:
                counts = ", ".join(f"{what} {result[what]:,}" for what in ("duplicates", "missing", "foreign"))
                found.append(f"{where}: {counts}; {result['examples'][0]}")
        found += self.verdict["problems"]
        if self.rows_read != self.verdict["mysql"]["expected"]:
            found.append(f"{self.rows_read:,} rows were read, {self.verdict['mysql']['expected']:,} were loaded")
        if self.kills_survived < self.kills_expected:
            found.append(f"only {self.kills_survived} of {self.kills_expected} kills hit an unfinished checkpoint")
        return found

    @property
    def exact(self) -> bool:
        """Whether everything is exact, and was put to the test by all kills."""
        return not self.failures

    def to_json(self) -> str:
        """The same as JSON."""
        data = {
            "exact": self.exact,
            "failures": self.failures,
            "run_state": self.run_state,
            "rows_read": self.rows_read,
            "checkpoints_confirmed": self.checkpoints,
            "deliveries": self.deliveries,
            "mysql": dict(self.verdict["mysql"]),
            "kafka_read_committed": dict(self.verdict["kafka"]),
            "copies": dict(self.verdict.get("copies", {})),
            "promises": dict(self.promises),
            "duplicates": self._total("duplicates"),
            "missing": self._total("missing"),
            "kills_survived": self.kills_survived,
            "kills": [asdict(kill) for kill in self.kills],
            "seconds": dict(self.seconds),
            "airflow": self.airflow,
        }
        return json.dumps(data, indent=2) + "\n"

    def _total(self, what: str) -> int:
        return sum(int(result[what]) for result in self._compared.values())

    def _found(self) -> list[tuple[str, str]]:
        """Return lines for MySQL and Kafka."""
        mysql, kafka = self.verdict["mysql"], self.verdict["kafka"]
        return [
            ("rows in MySQL", f"{mysql['found']:,}  expected {mysql['expected']:,}"),
            ("records in Kafka", f"{kafka['found']:,}  expected {kafka['expected']:,} (read_committed)"),
            ("duplicates", f"{self._total('duplicates'):,}"),
            ("missing", f"{self._total('missing'):,}"),
        ]

    def _table(self) -> list[tuple[str, str]]:
        """Return a line for each system. One with keys has no row twice: a row of a second computation is foreign."""
        counts = ("found", "missing", "duplicates", "foreign")
        head = ("system", _columns("promise", ("rows", "lost", "duplicated", "foreign")))
        return [head] + [
            (name, _columns(self.promises.get(name, ""), (f"{result[what]:,}" for what in counts)))
            for name, result in self._compared.items()
        ]

    def __str__(self) -> str:
        lines = [
            ("rows read", f"{self.rows_read:,}"),
            ("checkpoints confirmed", f"{self.checkpoints} in {self.deliveries} deliveries"),
            *(self._table() if self.verdict.get("copies") else self._found()),
            ("kills survived", f"{self.kills_survived}"),
            *(("", str(kill)) for kill in self.kills),
            ("seconds", ", ".join(f"{name} {seconds:.0f}" for name, seconds in self.seconds.items())),
        ]
        if self.airflow is not None:
            lines.append(
                ("Airflow", f"{self.airflow['url']}  login {self.airflow['login']} / {self.airflow['password']}")
            )
            lines.append(("stop it", self.airflow["stop"]))
        text = "\n".join(f"  {name:<22} {value}" for name, value in lines)
        rule = "-" * 100
        where = "all systems" if self.verdict.get("copies") else "both"
        result = f"EXACT: every flight once, every late flight once, the same values in {where}."
        if not self.exact:
            shown = self.failures[:SHOWN]
            if more := len(self.failures) - len(shown):
                shown.append(f"and {more} more")
            result = "NOT EXACT:\n" + "\n".join(f"  - {failure}" for failure in shown)
        return f"{rule}\n{text}\n{rule}\n{result}"


def _columns(promise: str, counts: Iterable[str]) -> str:
    return f"{promise:<12}" + "".join(f"{each:>11}" for each in counts)
