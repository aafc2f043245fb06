"""`python -m benchmarks.against TREE`: this tree's default path against another tree's, in turns on the same servers.

TREE is a checkout of this repository, such as `git worktree add /tmp/before COMMIT` makes. Both deliver the same log:
WAL -> MySQL by `local` on both servers, WAL -> Kafka by one transaction. Ends with 1 when this tree is slower by more
than --allowed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

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
    options = parser.parse_args()
    other = options.tree.resolve()
    if not (other / "airflow_ft" / "__init__.py").exists():
        parser.error(f"{other} is no checkout of this repository")
    done = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="airflow-ft-bench-")))
        folder.chmod(0o755)  # the servers run as somebody else
        bench = Bench(Servers(folder, options.rows < 500_000, stack), options.rows, options.rounds)
        for name in ("mariadb", "mysql", "kafka"):
            server = getattr(bench.servers, name)
            paths = {"this tree": _path(bench, name, None), "the other": _path(bench, name, other)}
            wanted = 1 - options.allowed
            if options.cpu:
                meter = Meter(bench, server.pid)
                for path in paths.values():
                    path.watching = meter.watching
                writers = {label: (_contender(path, label), path.worker.pid) for label, path in paths.items()}
                comparison = meter.comparison(name, writers, wanted)
            else:
                contenders = [_contender(path, label) for label, path in paths.items()]
                claims = [Claim(f"WAL -> {name}, default path", "this tree", ("the other",), wanted)]
                comparison = Comparison(name, f"WAL -> {name}, default path", contenders, claims, rows=options.rows)
            comparison.measure(options.rounds, say)
            done.append(comparison)
            for line in costs_table(comparison):
                say(line)
    for line in verdict_table(done):
        say(line)
    return 0 if all(verdict.is_reached for comparison in done for verdict in comparison.verdicts()) else 1


def _path(bench: Bench, name: str, tree: Path | None) -> IntoMySql | IntoKafka:
    return IntoKafka(bench, tree) if name == "kafka" else IntoMySql(bench, getattr(bench.servers, name), tree)


def _contender(path: IntoMySql | IntoKafka, label: str) -> Contender:
    default = path.ours("transaction") if isinstance(path, IntoKafka) else path.ours("local", "local")
    return Contender(label, default.run, warm_up=2)


if __name__ == "__main__":
    sys.exit(main())
