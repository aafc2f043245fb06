"""Chaos: kills at random moments of the demonstration's job, judged from outside. `make chaos`."""
