"""Savepoints: a checkpoint's positions and state in a folder of their own, to go on from (docs/savepoints.md).

- `metadata`: what a savepoint says of itself, and how it is read, listed and deleted.
- `taking`: makes one of a pipeline's newest confirmed checkpoint, while the pipeline runs or not.
- `offline`: makes another one of one, whose state a Spark driver of its own has changed: `rescaling`, `converting`.
- `restoring`: has a pipeline go on from one.
"""
