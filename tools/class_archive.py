"""Archive the classes of Spark and Kafka for the JVMs of tests.

A Spark driver that starts with its archive takes about 40 % less CPU time, a Kafka broker half.

`python -m tools.class_archive` makes the archives that are missing. A JVM that cannot use its archive (another release
of Java or of the program, another class path) loads its classes as usual. See "Class Data Sharing" in the manual of the
`java` command.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from confluent_kafka import Consumer, Producer

from tools.servers import Kafka
from tools.servers.base import local_folder

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for seconds."""

_FOLDER = Path(__file__).resolve().parents[1] / ".local" / "classes"
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"

_JOB = """
import sys
from pyspark.sql import SparkSession, functions as F

folder = sys.argv[1]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.sql.session.timeZone", "UTC")
    .config(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    .getOrCreate()
)
for number, kind in enumerate(("json", "csv", "parquet")):
    made = spark.range(20).selectExpr("id", "cast(id % 3 as string) k", "cast(id as decimal(12,2)) amount", "now() at")
    made.write.format(kind).save(f"{folder}/in-{kind}")
    read = spark.readStream.schema("id bigint, k string, amount decimal(12,2), at timestamp")
    rows = read.format(kind).load(f"{folder}/in-{kind}").withColumn("file", F.input_file_name())
    if number:
        rows = rows.groupBy("k").agg(F.sum("amount").alias("total"), F.max("file").alias("file"))
    rows = rows.mapInPandas(lambda frames: frames, rows.schema)

    def write(batch, number, kind=kind):
        batch.persist()
        batch.filter("k <> ''").write.mode("append").parquet(f"{folder}/out-{kind}/{number}")
        batch.agg(F.count("*"), F.max("k")).collect()
        batch.unpersist()

    writer = rows.writeStream.outputMode("update").option("checkpointLocation", f"{folder}/location-{kind}")
    writer.foreachBatch(write).trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def _run_spark(folder: Path, options: str) -> None:
    """Run the job in a driver with these options."""
    program, log = folder / "job.py", folder / "log"
    program.write_text(_JOB)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": options,
    }
    submit = Path(sys.executable).parent / "spark-submit"
    with log.open("wb") as output:
        done = subprocess.run([submit, program, folder], env=environment, stdout=output, stderr=output, check=False)
    if done.returncode:
        raise RuntimeError(f"Spark failed:\n{log.read_text(errors='replace')[-3000:]}")


def _run_kafka(folder: Path, options: str) -> None:
    """Deliver transactions into a broker whose JVM has these options, read them, and stop it."""

    class Recorded(Kafka):
        stop_seconds = 600  # it writes the archive when it ends

        def _before_start(self, data: Path) -> None:
            os.environ["KAFKA_OPTS"] = options  # not of the program that formats its disk

    with Recorded(folder / "server") as broker:
        broker.create_topic("rows")
        client = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        for number in range(3):
            producer = Producer({**client, "transactional.id": f"t{number}"})
            producer.init_transactions(60)
            producer.begin_transaction()
            producer.produce("rows", b"row")
            producer.commit_transaction(60)
        consumer = Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["rows"])
        consumer.consume(3, timeout=60)
        consumer.commit(asynchronous=False)
        consumer.close()
        broker.delete_topic("rows")


_RUNS = {"spark": _run_spark, "kafka": _run_kafka}


def _programs(name: str) -> list[str]:
    """Return what the classes come from."""
    if name == "spark":
        spark = find_spec("pyspark")
        return [str(spark and spark.origin), _JOB]
    return [f"{jar} {jar.stat().st_mtime_ns}" for jar in sorted((local_folder() / "jars" / name).glob("*.jar"))]


def archive(name: str) -> Path:
    """Return the file for this machine's Java and this environment's "spark" or "kafka", made or not."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home and name == "spark" else "java") or ""
    what = [os.path.realpath(java), *_programs(name), QUICK]
    return _FOLDER / f"{name}-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}.jsa"


def options(name: str) -> str:
    """Return the options of a JVM of a test: with the archive if it was made."""
    found = archive(name)
    return f"{QUICK} -XX:SharedArchiveFile={found} {_SILENT}" if found.exists() else QUICK


def make() -> None:
    """Make the archives that are missing, and remove those of other releases; RuntimeError if Java made none."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = {name: archive(name) for name in _RUNS}
    for name, target in wanted.items():
        if target.exists():
            continue
        with tempfile.TemporaryDirectory(dir=_FOLDER) as made:
            folder = Path(made)
            folder.chmod(0o777)  # Kafka runs without root's rights
            fresh = folder / "fresh.jsa"
            _RUNS[name](folder, f"{QUICK} -XX:ArchiveClassesAtExit={fresh} {_SILENT}")
            if not fresh.exists():
                logs = "\n".join(
                    log.read_text(errors="replace")[-3000:] for log in folder.rglob("log") if log.is_file()
                )
                raise RuntimeError(f"Java made no archive of the classes of {name}:\n{logs}")
            fresh.rename(target)
    for old in set(_FOLDER.glob("*.jsa")) - {*wanted.values()}:
        old.unlink(missing_ok=True)


if __name__ == "__main__":
    make()
