"""Send the driver's log records to its task, a line each.

A job may configure logging: by default `dictConfig` and `fileConfig` disable all loggers that exist. So the package's
loggers ignore that and `logging.disable`, and have a handler that the job does not reach.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PACKAGE = "airflow_ft"
_FORMAT = "%(message)s"
_outputs: list[logging.Handler] = []


class _Heard(logging.Logger):
    """A logger that nothing silences."""

    def isEnabledFor(self, level: int) -> bool:
        return level >= logging.INFO

    def handle(self, record: logging.LogRecord) -> None:
        for output in _outputs:
            output.handle(record)


def speak(output: Any) -> None:
    """Write records of this package into the output, a file of text.

    It also gets what the job logs, until the job sets up logging itself.
    """
    logging.basicConfig(stream=output, level=logging.INFO, format=_FORMAT)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    handler = logging.StreamHandler(output)
    handler.setFormatter(logging.Formatter(_FORMAT))
    _outputs[:] = [handler]
    logging.getLogger(_PACKAGE)
    for name, found in logging.root.manager.loggerDict.items():
        if isinstance(found, logging.Logger) and f"{name}.".startswith(f"{_PACKAGE}."):
            found.__class__ = _Heard
            found.handlers, found.propagate = [handler], False  # for loggers below it that are made later


@contextmanager
def silence() -> Iterator[None]:
    """Drop all log records of this process, until the block ends."""
    outputs = _outputs[:]
    _outputs.clear()
    logging.disable(logging.CRITICAL)  # for loggers that `speak` has not changed
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        _outputs[:] = outputs
