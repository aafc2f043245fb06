"""Names that the store does not know: the package's own errors that are a KeyError as well."""

from __future__ import annotations

from airflow_ft.protocol.errors import ConfigurationError, StateConflictError, StoreCorruptError


class UnknownPipelineError(ConfigurationError, KeyError):
    """There is no pipeline of that name (terminal)."""

    def __init__(self, pipeline: str) -> None:
        super().__init__(
            "the decision log has no pipeline of this name.",
            code="pipeline_unknown",
            remedy="Check the name, and `[airflow_ft] store` or `--store`. The first run of a pipeline registers it.",
            pipeline=pipeline,
        )

    __str__ = Exception.__str__  # KeyError's own would quote the sentence


class UnknownCheckpointError(StateConflictError, KeyError):
    """There is no checkpoint of that number."""

    def __init__(self, pipeline: str, number: int) -> None:
        super().__init__(
            "the decision log has no checkpoint of this number.",
            code="checkpoint_unknown",
            remedy=f"List them: `airflow ft checkpoints {pipeline}`. If it existed, this decision log is another one or"
            " was restored from a backup.",
            pipeline=pipeline,
            checkpoint=number,
        )

    __str__ = Exception.__str__


class UnknownSpecError(StoreCorruptError, KeyError):
    """The settings of a checkpoint are missing."""

    def __init__(self, digest: str) -> None:
        super().__init__(
            f"a checkpoint names the row {digest[:16]!r} of the table spec, which is missing", table="spec"
        )

    __str__ = Exception.__str__
