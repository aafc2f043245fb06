"""Archive Spark's classes for the JVMs of tests: one that starts with the archive takes about 40 % less CPU time.

`python -m tools.class_archive` makes the archive unless it is there. A JVM that cannot use it (another release of Java
or Spark, another class path) loads its classes as usual. See "Class Data Sharing" in the manual of the `java` command.
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

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for seconds."""

_FOLDER = Path(__file__).resolve().parents[1] / ".local" / "classes"

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


def archive() -> Path:
    """The file for this machine's Java and this environment's Spark, made or not."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java") or ""
    spark = find_spec("pyspark")
    what = [os.path.realpath(java), str(spark and spark.origin), _JOB, QUICK]
    return _FOLDER / f"{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}.jsa"


def options() -> str:
    """The options of a JVM of a test: with the archive if it was made."""
    found = archive()
    return f"{QUICK} -XX:SharedArchiveFile={found} -Xlog:cds=off -Xlog:cds+dynamic=off" if found.exists() else QUICK


def make() -> None:
    """Makes the archive, and removes those of other releases; RuntimeError if Java made none."""
    target = archive()
    if target.exists():
        return
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
        fresh, log = Path(folder) / "fresh.jsa", Path(folder) / "log"
        program = Path(folder) / "job.py"
        program.write_text(_JOB)
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": f"{QUICK} -XX:ArchiveClassesAtExit={fresh} -Xlog:cds=off -Xlog:cds+dynamic=off",
        }
        submit = Path(sys.executable).parent / "spark-submit"
        with log.open("wb") as output:
            subprocess.run([submit, program, folder], env=environment, stdout=output, stderr=output, check=False)
        if not fresh.exists():
            raise RuntimeError(f"Java made no archive of Spark's classes:\n{log.read_text(errors='replace')[-3000:]}")
        for old in _FOLDER.glob("*.jsa"):
            old.unlink(missing_ok=True)
        fresh.rename(target)


if __name__ == "__main__":
    make()
