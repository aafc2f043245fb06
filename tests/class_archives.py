"""Quick starts for the JVMs of the tests; tools/bootstrap.sh makes the archives: `python -m tests.class_archives`.

A Spark driver or a broker of a test lives for seconds, most of which it would spend on loading, verifying and compiling
classes. So they are compiled by the quick compiler alone, and what a first run has loaded is kept in an archive of the
JVM (application class data sharing). The JVM itself checks whether an archive fits it and the jars, and if not, says so
and goes on without. Benchmarks start their JVMs without all this.

`python -m tests.class_archives ROUNDS` measures the CPU time of a driver, and of a broker that is started, killed and
started again, with and without.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.servers import Kafka
from tools.servers.base import local_folder

FOLDER = local_folder() / "class-archives"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Whose JVM reads which variable: spark-submit for the driver and for the program that puts its command together, and
# the brokers of tools/servers.
SPARK, LAUNCHER, KAFKA = "SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "KAFKA_OPTS"


def java_options() -> Mapping[str, str]:
    """Environment variables for all processes of the tests, with the archives that there are."""
    return {SPARK: _with_archive("spark"), KAFKA: _with_archive("kafka"), LAUNCHER: QUICK}


def _with_archive(name: str) -> str:
    archive = FOLDER / f"{name}.jsa"
    return f"{QUICK} -XX:SharedArchiveFile={archive}" if archive.exists() else QUICK


def _run_spark(folder: Path, options: str, job: str = "Crashing") -> None:
    """A driver as the product starts it; by default with a stateful job and Python workers."""
    from airflow_ft.sources import FileSource
    from airflow_ft.spark.private import private_folder
    from airflow_ft.spark.session.submit import environment, prepare
    from tests.integration.stage_world import StageWorld

    with closing(StageWorld(folder)) as world, private_folder() as private:
        world.add_file("one", [{"k": "a", "n": 1}])
        source = FileSource(path=str(world.input), schema="k string, n bigint")
        request = world.request(f"stage_jobs:{job}", {"numbers": source})
        variables = {**environment(request), SPARK: options}
        subprocess.run(prepare(private, request), env=variables, stdin=subprocess.DEVNULL, check=True)


class _Broker(Kafka):
    stop_seconds = 300  # it writes the archive at its end


def _run_kafka(folder: Path, options: str) -> None:
    """A broker that takes a transaction and is read."""
    from confluent_kafka import Producer

    from tests.integration.kafka_world import read
    from tests.waiting import wait_for

    os.environ[KAFKA] = options
    with _Broker(folder / "kafka") as server:
        server.create_topic("t", 1)
        producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": "t"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("t", b"value")
        producer.commit_transaction(60)
        # Its marker is written after the answer to the commit.
        wait_for(lambda: len(read(server.bootstrap, "t")) == 1, 60, "the transaction is visible")


def _make(name: str, run: Callable[[Path, str], None]) -> None:
    FOLDER.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=FOLDER) as folder:
        Path(folder).chmod(0o777)  # servers run as another user
        fresh = Path(folder) / f"{name}.jsa"
        # What cannot be archived (signed jars, generated classes) is not worth a thousand lines of warnings.
        run(Path(folder), f"{QUICK} -XX:ArchiveClassesAtExit={fresh} -Xlog:disable -Xlog:all=error:stderr")
        fresh.chmod(0o644)
        with fresh.open("rb") as written:
            os.fsync(written.fileno())
        fresh.rename(FOLDER / fresh.name)  # whole, or not there: a JVM that maps a part of one would crash


def _restart_kafka(folder: Path, options: str) -> None:
    os.environ[KAFKA] = options
    with Kafka(folder / "kafka") as server:
        server.kill()
        server.start()


def _measure(rounds: int) -> None:
    tasks: Mapping[str, tuple[str, Callable[[Path, str], None]]] = {
        "driver": (SPARK, lambda folder, options: _run_spark(folder, options, "Static")),
        "driver, stateful": (SPARK, _run_spark),
        "broker": (KAFKA, _restart_kafka),
    }
    for _ in range(rounds):
        for name, (variable, run) in tasks.items():
            quick = java_options()[variable]
            for kind, options in {
                "as it is": "",
                "archive": quick.removeprefix(QUICK),
                "quick, archive": quick,
            }.items():
                before = _cpu()
                with TemporaryDirectory() as folder:
                    Path(folder).chmod(0o777)
                    run(Path(folder), options)
                sys.stderr.write(f"{name}, {kind}: {_cpu() - before:.1f} s of CPU\n")


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(rounds: int) -> None:
    """Makes both archives anew; or measures them."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    if rounds:
        return _measure(rounds)
    _make("kafka", _run_kafka)
    _make("spark", _run_spark)
    for archive in sorted(FOLDER.glob("*.jsa")):
        sys.stdout.write(f"{archive.name}: {archive.stat().st_size >> 20} MiB\n")


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["0"])[0]))
