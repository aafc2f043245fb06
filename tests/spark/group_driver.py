"""A program in place of a group's driver, without a JVM: the name of the pipeline tells it what to do."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from airflow_ft.spark.attribution import marked
from airflow_ft.spark.private import write
from airflow_ft.spark.session.submit import END, ENDED, KILL, REQUEST, RESULT, START


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(private: Path) -> None:
    streams: list[tuple[str, Path]] = []
    say("of the JVM, with a secret-word")
    while True:
        for order in sorted(private.glob(f"*.{START}")):
            folder = Path(order.read_text())
            order.unlink()
            pipeline = json.loads((folder / REQUEST).read_text())["pipeline"]
            say(f"half a line of the JVM{marked(pipeline, 'it begins')}")
            if pipeline == "leaks":
                say(marked(pipeline, "Unrecognized option: --Dtrust.password=secret-99"))
            streams.append((pipeline, folder))
        for pipeline, folder in list(streams):
            if pipeline == "talks" and not (folder / "talked").exists():
                for _ in range(20_000):  # more than a pipe holds
                    say(marked(pipeline, "and it says more"))
                (folder / "talked").touch()
            if pipeline == "dies":
                os._exit(3)
            if pipeline.startswith("silent") and not (folder / RESULT).exists():
                write(folder / RESULT, json.dumps({"result" if pipeline == "silent_success" else "error": {}}))
            if pipeline == "silent_chatter":
                say(marked(pipeline, "and it says more"))
            if pipeline == "unfit":
                say("Unrecognized option: --Dtrust.password=secret-99")
                os._exit(1)
            if pipeline == "fails":
                error = {"type": "StageError", "what": "no login with secret-word.", "code": "x", "remedy": ""}
                (private / RESULT).write_text(json.dumps({"error": error}))
                os._exit(1)
            if pipeline == "hangs" and (folder / KILL).exists():
                (folder / RESULT).write_text(json.dumps({"error": {}}))
                os._exit(1)
            if pipeline == "waits" and (folder / END).exists():
                (folder / RESULT).write_text(json.dumps({"result": {}}))
                say(marked(pipeline, f"{ENDED}{folder.name}"))
                streams.remove((pipeline, folder))
        if (private / END).exists() and not streams:
            return
        time.sleep(0.01)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
