"""Savepoints: a checkpoint's positions and state in a folder of their own, to restore from (docs/savepoints.md).

- `metadata`: the contents of a savepoint, and how it is read, listed and deleted.
- `taking`: takes one of a pipeline's newest confirmed checkpoint, while the pipeline runs or not.
- `offline`: makes a new one from one, with state changed in a separate Spark driver: `rescaling`, `converting`.
- `restoring`: restores a pipeline from one, unless `restorable` refuses it.
"""
