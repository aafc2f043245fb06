"""Processes that race each other on one store."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any

from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog

PROCESSES = 8


def race(url: str, work: Callable[[DecisionLog, int], Any], processes: int = PROCESSES) -> list[Any]:
    """Runs `work(store, index)` in so many processes at once; what each returned, or the name of the error it met."""
    gate, opener = os.pipe()
    children = []
    for index in range(processes):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(opener)
                store = open_store(url)
                os.read(gate, 1)  # ends when the parent lets all of them go
                try:
                    answer = work(store, index)
                except AirflowFtError as error:
                    answer = type(error).__name__
                with os.fdopen(write, "w") as pipe:
                    json.dump(answer, pipe)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(write)
        children.append((child, read))
    os.close(gate)
    os.close(opener)
    answers = []
    for child, read in children:
        with os.fdopen(read) as pipe:
            answers.append(pipe.read())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return [json.loads(answer) for answer in answers]
