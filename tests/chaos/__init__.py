"""Chaos: faults on purpose over real servers, judged from outside. `make chaos`; see docs/chaos.md."""
