"""Names that the store does not know: the package's own errors that are a KeyError as well."""

from __future__ import annotations

from airflow_ft.core.errors import ConfigurationError, StateConflictError, StoreCorruptError


class UnknownPipelineError(ConfigurationError, KeyError):
    """There is no pipeline of that name (terminal)."""

    def __init__(self, pipeline: str) -> None:
        super().__init__(
            "the decision log has no pipeline of this name.",
            remedy="check the name and the store's URL; a pipeline is registered by its first run.",
            pipeline=pipeline,
        )

    def __str__(self) -> str:  # KeyError's own would quote the sentence
        return str(self.args[0])


class UnknownCheckpointError(StateConflictError, KeyError):
    """There is no checkpoint of that number."""

    def __init__(self, pipeline: str, number: int) -> None:
        super().__init__(
            "the decision log has no checkpoint of this number.",
            remedy="list them with the pipeline's name; if it existed, the store is another one or was restored from"
            " a backup.",
            pipeline=pipeline,
            checkpoint=number,
        )

    def __str__(self) -> str:
        return str(self.args[0])


class UnknownSpecError(StoreCorruptError, KeyError):
    """What a checkpoint was made with is not there."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"its table spec has no row {digest[:16]!r}, which a checkpoint names")

    def __str__(self) -> str:
        return str(self.args[0])
