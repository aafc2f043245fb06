"""`make model CALLS=number`: every schedule of the models, and a counterexample for each rule that is switched off.

`python -m tests.model --story RULE` tells the counterexample.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.model.check import MODELS, RULES, Verifier, verifier_without


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--calls", type=int, default=int(os.environ.get("CALLS") or 2), help="steps a worker calls")
    parser.add_argument("--story", metavar="RULE", choices=[rule.name for rule in RULES])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="airflow-ft-model-") as folder:
        return _report(given.story, Path(folder)) if given.story else _check(given.calls, Path(folder))


def _report(name: str, folder: Path) -> int:
    verifier = verifier_without(next(rule for rule in RULES if rule.name == name), folder)
    result = verifier.search()
    print(verifier.story())
    return 0 if result.error else 1


def _check(calls: int, folder: Path) -> int:
    failed = False
    print(f"{'model':<14}{'switched off':<24}{'calls':>5}{'states':>14}{'seconds':>9}  outcome", flush=True)
    for model in MODELS:
        result = Verifier(folder, model, {"CALLS": calls}, large=True).search()
        outcome = "every schedule is right" if result.complete else f"WRONG: {result.error or 'not complete'}"
        failed |= not result.complete
        print(f"{model:<14}{'-':<24}{calls:>5}{result.states:>14,}{result.seconds:>9.1f}  {outcome}", flush=True)
    for model in MODELS:
        result = Verifier(folder, model, {"CALLS": 1}, large=True, endless=True).search()
        outcome = "every schedule ends" if result.complete else f"WRONG: {result.error or 'not complete'}"
        failed |= not result.complete
        print(f"{model:<14}{'-':<24}{1:>5}{result.states:>14,}{result.seconds:>9.1f}  {outcome}", flush=True)
    for rule in RULES:
        result = verifier_without(rule, folder).search()
        outcome = "counterexample" if result.error else "NO COUNTEREXAMPLE"
        failed |= not result.error
        print(
            f"{rule.model:<14}{rule.name:<24}{rule.calls:>5}{result.states:>14,}{result.seconds:>9.1f}  {outcome}",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
