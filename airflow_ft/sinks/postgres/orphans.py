"""Prepared transactions of the owners of a pipeline, as `airflow_ft.sinks.base.orphans` lists and ends them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

from airflow_ft.sinks.base.orphans import PreparedOfOwners
from airflow_ft.sinks.base.prepared import BranchName, owner_of
from airflow_ft.sinks.postgres.gid import Gid, end_prepared, listed
from airflow_ft.sinks.postgres.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Prepared(PreparedOfOwners):
    """`seconds` bound the wait for another session that ends the same transaction."""

    ledger: Ledger
    seconds: float

    def of(self, owners: Collection[str]) -> list[tuple[str, BranchName]]:
        return [
            (owner, gid)
            for owner in sorted(owners)
            for gid in listed(self.ledger.session, owner_of(owner, *self.ledger.key))
        ]

    def sql(self, name: BranchName, verb: str) -> str:
        return f"{verb} PREPARED {cast(Gid, name).sql}"

    def end(self, owner: str, name: BranchName, verb: str) -> None:
        end_prepared(self.ledger.session, cast(Gid, name), verb, self.seconds)
