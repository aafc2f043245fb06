"""What is delivered into: every strategy alone, and plans over several systems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MYSQL_FAMILY = ("mariadb", "mysql")
STORES = ("sqlite", "postgres")


@dataclass(frozen=True)
class Target:
    """`sinks`: name -> (server, strategy); each is a connection, and so a participant, of its own."""

    name: str
    sinks: Mapping[str, tuple[str, str]]

    @property
    def servers(self) -> frozenset[str]:
        """The servers that its rows go into."""
        return frozenset(server for server, _ in self.sinks.values())

    def table(self, sink: str) -> str:
        """The table of a sink on a MySQL server: one for all pipelines that write there by the same strategy."""
        return f"rows_{self.sinks[sink][1]}"

    def topic(self, sink: str) -> str:
        """The topic of a sink: of this target alone, so that what holds up its readers holds up no others."""
        return f"{self.name.replace(' ', '')}-{sink}".replace("+", ".").replace("(", "-").replace(")", "")


def _single(server: str, strategy: str) -> Target:
    return Target(f"{server} {strategy}", {"a": (server, strategy)})


_ALONE = [
    *(_single(server, strategy) for server in MYSQL_FAMILY for strategy in ("local", "xa", "upsert")),
    _single("kafka", "transaction"),
    _single("kafka", "held"),
]
_MIXES = [
    Target("local + transaction", {"a": ("mariadb", "local"), "b": ("kafka", "transaction")}),
    Target("local + held", {"a": ("mysql", "local"), "b": ("kafka", "held")}),
    Target("local + xa", {"a": ("mariadb", "local"), "b": ("mysql", "xa")}),
    Target("xa + xa", {"a": ("mariadb", "xa"), "b": ("mysql", "xa")}),
    Target("xa + held", {"a": ("mysql", "xa"), "b": ("kafka", "held")}),
    Target(
        "all of them",
        {
            "a": ("mariadb", "local"),
            "b": ("mysql", "xa"),
            "c": ("mysql", "upsert"),
            "d": ("kafka", "transaction"),
            "e": ("kafka", "held"),
        },
    ),
]
TARGETS: Mapping[str, Target] = {target.name: target for target in [*_ALONE, *_MIXES]}
