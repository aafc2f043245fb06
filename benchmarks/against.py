"""`python -m benchmarks.against TREE`: this tree's default path against another tree's, in turns on the same servers.

TREE is a checkout of this repository, such as `git worktree add /tmp/before COMMIT` makes. Both deliver the same log:
WAL -> MySQL by `local` on both servers, WAL -> Kafka by one transaction. With --micro-batches they stage instead, one
micro-batch of one row after the other. Ends with 1 when this tree is slower by more than --allowed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import micro_batches
from benchmarks.bench import Bench, Servers, say
from benchmarks.cpu import Meter
from benchmarks.into_kafka import IntoKafka
from benchmarks.into_mysql import IntoMySql
from benchmarks.measuring import Claim, Comparison, Contender
from benchmarks.reporting import costs_table, verdict_table


def main() -> int:
    """Prints the costs and the ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--allowed", type=float, default=0.03, help="part by which this tree may be slower")
    parser.add_argument("--cpu", action="store_true", help="compare CPU time, which other work hardly changes")
    parser.add_argument("--micro-batches", action="store_true", help="compare how long staging a row takes")
    options = parser.parse_args()
    other = options.tree.resolve()
    if not (other / "airflow_ft" / "__init__.py").exists():
        parser.error(f"{other} is no checkout of this repository")
    done = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="airflow-ft-bench-")))
        folder.chmod(0o755)  # the servers run as somebody else
        bench = Bench(Servers(folder, options.rows < 500_000, stack), options.rows, options.rounds)
        trees = {"this tree": None, "the other": other}
        compare = micro_batches.comparisons if options.micro_batches else partial(_deliveries, cpu=options.cpu)
        for comparison in compare(bench, trees, 1 - options.allowed):
            comparison.measure(options.rounds, say)
            done.append(comparison)
            for line in costs_table(comparison):
                say(line)
    for line in verdict_table(done):
        say(line)
    return 0 if all(verdict.is_reached for comparison in done for verdict in comparison.verdicts()) else 1


def _deliveries(bench: Bench, trees: Mapping[str, Path | None], wanted: float, *, cpu: bool) -> Iterator[Comparison]:
    for name in ("mariadb", "mysql", "kafka"):
        server = getattr(bench.servers, name)
        paths = {label: _path(bench, name, tree) for label, tree in trees.items()}
        if cpu:
            meter = Meter(bench, server.pid)
            for path in paths.values():
                path.watching = meter.watching
            writers = {label: (_contender(path, label), path.worker.pid) for label, path in paths.items()}
            yield meter.comparison(name, writers, wanted)
        else:
            contenders = [_contender(path, label) for label, path in paths.items()]
            claims = [Claim(f"WAL -> {name}, default path", "this tree", ("the other",), wanted)]
            yield Comparison(name, f"WAL -> {name}, default path", contenders, claims, rows=bench.rows)


def _path(bench: Bench, name: str, tree: Path | None) -> IntoMySql | IntoKafka:
    return IntoKafka(bench, tree) if name == "kafka" else IntoMySql(bench, getattr(bench.servers, name), tree)


def _contender(path: IntoMySql | IntoKafka, label: str) -> Contender:
    default = path.ours("transaction") if isinstance(path, IntoKafka) else path.ours("local", "local")
    return Contender(label, default.run, warm_up=2)


if __name__ == "__main__":
    sys.exit(main())
