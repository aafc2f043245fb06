"""Chaos below Airflow: real steps in real processes over real servers, a second or two a fault.

`nursery` forks the processes, `child` is what one of them does, `faults` says what may befall it, `strikes` carries
that out, `judge` looks from outside. Only `child` imports the package under test.
"""
