"""Submit a driver: command, settings, environment and its private folder. Secrets are only in files of mode 0600."""

from __future__ import annotations

import json
import os
import pwd
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from airflow_ft.clients.buckets import BucketPlace, is_bucket
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.spark.private import PROPERTIES, write
from airflow_ft.spark.request import DEFAULT_CONF, FIXED_CONF, UNSEEN_CONF, StageRequest, is_local, listed
from airflow_ft.spark.session import connector, kubernetes, s3a
from airflow_ft.spark.session.home import spark_home
from airflow_ft.spark.state.settings import FORMAT, PROVIDER, commit_format

REQUEST, RESULT, MAIN = "request.json", "result.json", "main.py"
END = "end"  # a stream is to end after the checkpoint under way; with this in it, with one of what is open
DRAIN = "drain"
READY = "ready to take over"  # a line that a standby driver says
KILL = "kill"  # a stream of a group is to end at once
SESSION = "session.json"  # the settings of a stream's Spark session, in a group
START = "start"  # the end of the name of a file that asks the driver of a group to run a stream
STARTED = "Spark %s started in %.1f s%s"
"""The driver's line when its session has started: version, seconds, and the application in parentheses."""
ENDED = "\x1fended "  # a line of that driver's output: a stream has ended; followed by the name of its folder

# Airflow's own settings, connections and variables are not for a user's job; the others would
# make the driver think that it was started from inside another one.
_WITHHELD_PREFIXES = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "_AIRFLOW_", "__AIRFLOW_")
_WITHHELD = {"PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS", "PYTHONSTARTUP", "PYTHONHOME"}

_KEYS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}

# The driver of a scheduled run lives for seconds or minutes, and would spend most of its CPU time on optimising what it
# never runs again: the optimising compiler gets a method ten times later than HotSpot's own thresholds say. Loops over
# rows reach that in a moment. A stream lives for days, and is optimised as usual.
LATE_OPTIMISER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_UNIQUE_FILES_SINCE = 4, 2  # Spark has it before, where it was not tried

# For the program that only puts the driver's command together.
QUICK_LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def prepare(folder: Path, request: StageRequest) -> list[str]:
    """Writes what a driver with a JVM of its own needs into its folder; returns the command, which has no secret."""
    write_main(folder, request)
    write(folder / PROPERTIES, properties(settings(request, folder)))
    return submit(folder, str(folder / MAIN))


def prepare_standby(folder: Path, request: StageRequest) -> list[str]:
    """Write what a driver needs that waits for its request; returns the command, which has no secret."""
    conf = settings(request, folder)
    write_program(folder, "airflow_ft.spark.driver.standby", str(folder), conf["spark.master"])
    write(folder / PROPERTIES, properties(conf))
    return submit(folder, str(folder / MAIN))


def write_main(folder: Path, request: StageRequest, session: int | None = None) -> None:
    """Writes the request, and the Python program that runs it; `session`: the open file that leads to its JVM."""
    write_request(folder, request)
    write_program(folder, "airflow_ft.spark.driver.runner", str(folder), session)


def write_program(folder: Path, module: str, *arguments: str | int | None) -> None:
    """Write a Python program that calls `main` of a module, and exits with the code that `main` returns."""
    call = f"main({', '.join(map(repr, arguments))})"
    write(folder / MAIN, f"from {module} import main\n\nraise SystemExit({call})\n")


def write_request(folder: Path, request: StageRequest) -> None:
    """Write the request, which holds credentials; the driver deletes it when it has read it."""
    try:
        write(folder / REQUEST, json.dumps(request.to_json()))
    except TypeError as error:
        raise ConfigurationError(
            f"job_args, a source or a connection has a value that JSON cannot hold: {error}.",
            code="argument_invalid",
            pipeline=request.pipeline,
            remedy="Give text, numbers, lists and dictionaries only.",
            argument="job_args",
        ) from error


def end_driver(folder: Path) -> Callable[[bool], None]:
    """Return what asks the stream of the driver in `folder` to end: after a drain, or at its next checkpoint."""

    def end(drain: bool) -> None:
        with suppress(OSError):  # the driver may have ended, and its folder gone
            write(folder / END, DRAIN if drain else "")

    return end


def submit(folder: Path, program: str) -> list[str]:
    """The command that starts a JVM with the properties that lie in `folder`; raises as `require_user` does."""
    require_user()
    files = ["--properties-file", str(folder / PROPERTIES), "--load-spark-defaults"]
    return [str(spark_home() / "bin" / "spark-submit"), *files, program]


def require_user() -> str:
    """Return the name of this process's user. ConfigurationError without one: Hadoop's login in Spark's JVM fails."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise ConfigurationError(
            f"user {os.getuid()} of this process has no name, so Spark cannot start.",
            code="user_unknown",
            remedy="Give that user a line in /etc/passwd with a name and a home. In a container, keep the entrypoint of"
            " Airflow's image, which does that.",
            user=os.getuid(),
        ) from None


def settings(request: StageRequest, folder: Path) -> dict[str, str]:
    """All Spark settings: the user's over the defaults, and what the protocol rests on over all."""
    conf = {
        **DEFAULT_CONF,
        "spark.app.name": f"airflow-ft {request.pipeline}",
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
        "spark.local.dir": str(folder / "spark-local"),
        "spark.master": request.master or "local[*]",
        # Else spark.pyspark.python, which names the executors' interpreter, would start the driver, too.
        "spark.pyspark.driver.python": sys.executable,
    }
    if is_local(conf["spark.master"]):
        conf["spark.driver.host"] = conf["spark.driver.bindAddress"] = "127.0.0.1"
    elif request.python_path:
        # Python functions travel by the name of their module: executors import the job from the same folders.
        conf["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(request.python_path)
    conf |= request.conf
    if conf["spark.ui.enabled"].lower() != "true":
        conf = UNSEEN_CONF | conf
    if request.master:
        conf["spark.master"] = request.master
    if kubernetes.is_kubernetes(conf["spark.master"]):
        conf |= kubernetes.settings(conf["spark.master"], conf)
    if is_local(conf["spark.master"]):
        # Else each user of the machine may ask its ports for blocks, and send it Java objects. Spark makes the secret.
        conf.setdefault("spark.authenticate", "true")
    elif not request.streaming:
        # The end of a run reaches the driver's stores alone (`state_files`): executors see to theirs batch by batch.
        conf.setdefault("spark.sql.streaming.stateStore.unloadOnCommit", "true")
    if FORMAT not in conf and _has_unique_files(request, conf):
        conf[FORMAT] = "2"
    retained = int(conf.get("spark.sql.streaming.minBatchesToRetain", "0"))
    # Those that may have to be rewound, and before them the delivered ones that are kept whole.
    needed = request.retained_batches + request.checkpointing.num_retained - 1
    conf["spark.sql.streaming.minBatchesToRetain"] = str(max(retained, needed))
    jars = [*listed(conf.get("spark.jars", "")), *jar_files(request.jars)]
    packages = [*listed(conf.get("spark.jars.packages", "")), *request.packages]
    needs_kafka = any(source.get("kind") == "kafka" for source in request.sources.values())
    if needs_kafka and connector.given(spark_home(), jars, packages) is None:
        jars += connector.fetch(connector.choose(connector.spark_version(spark_home())), conf)
    if is_bucket(request.wal_root):
        jars += s3a.needed(spark_home(), jars, {**conf, "spark.jars.packages": ",".join(packages)})
    if jars:
        conf["spark.jars"] = ",".join(jars)
    if packages:
        conf["spark.jars.packages"] = ",".join(packages)
    return {**conf, **FIXED_CONF}


def _has_unique_files(request: StageRequest, conf: Mapping[str, str]) -> bool:
    """Return whether each attempt at a task gives its state files names of their own (checkpoint format 2 of RocksDB).

    On a cluster an executor that was given up may still write beside its successor. So new pipelines get it there. A
    pipeline keeps its first format.
    """
    kept = commit_format(request.base)
    if kept is not None:
        return kept == "2"
    if is_local(conf["spark.master"]) or not conf.get(PROVIDER, "").endswith(".RocksDBStateStoreProvider"):
        return False
    return tuple(map(int, connector.spark_version(spark_home()).split(".")[:2])) >= _UNIQUE_FILES_SINCE


def environment(request: StageRequest) -> dict[str, str]:
    """This process's environment without Airflow's, and with the running interpreter for driver and workers."""
    withheld = _WITHHELD | (_KEYS if _uploads_keys(request) else set())
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in withheld and not name.startswith(_WITHHELD_PREFIXES)
    }
    package_root = str(Path(__file__).resolve().parents[3])
    path = [*request.python_path, *kept.get("PYTHONPATH", "").split(os.pathsep), package_root]
    kept["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(entry for entry in path if entry))
    kept["PYSPARK_PYTHON"] = kept["PYSPARK_DRIVER_PYTHON"] = sys.executable
    kept["PYTHONUNBUFFERED"] = "1"
    if is_local(request.master or request.conf.get("spark.master", "local")) and not _has_address(socket.gethostname()):
        kept.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # without it Spark cannot start
    # With these, Java opens no path with a letter outside ASCII. Python does not heed them either.
    if kept.get("LC_ALL") in ("C", "POSIX"):
        kept["LC_ALL"] = "C.UTF-8"
    # First, so that what the user says in the same variable, or in spark.driver.extraJavaOptions, overrides it.
    given = ("" if request.streaming else LATE_OPTIMISER, kept.get("SPARK_SUBMIT_OPTS", ""))
    kept["SPARK_SUBMIT_OPTS"] = " ".join(option for option in given if option)
    kept.setdefault("SPARK_LAUNCHER_OPTS", QUICK_LAUNCHER)
    return kept


@cache
def _has_address(host: str) -> bool:
    """Return whether the host has an address, found once: a name server may need long to answer, or fail meanwhile."""
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):  # UnicodeError: a label is empty, or longer than 63 characters
        return False


def _uploads_keys(request: StageRequest) -> bool:
    """Return whether Spark would write the log's keys into a file: on YARN it uploads those of the environment."""
    on_yarn = (request.master or request.conf.get("spark.master")) == "yarn"
    return on_yarn and is_bucket(request.wal_root) and not BucketPlace.of(request.wal_root).conn_id


def driver_environment(request: StageRequest) -> dict[str, str]:
    """The same for a Python driver that is not started by spark-submit: it finds the pyspark of $SPARK_HOME."""
    kept, python = environment(request), spark_home() / "python"
    # First, as spark-submit does it: this package's folder may hold pip's pyspark, of another version.
    own = [python, *sorted(python.glob("lib/py4j-*.zip"))] if (python / "pyspark" / "__init__.py").is_file() else []
    return {**kept, "PYTHONPATH": os.pathsep.join([*map(str, own), kept["PYTHONPATH"]])}


def properties(conf: Mapping[str, str]) -> str:
    """Settings in the format of java.util.Properties."""
    return "".join(f"{_escaped(name, key=True)}={_escaped(value)}\n" for name, value in conf.items())


def _escaped(text: str, *, key: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if key:
        for character in " :=#!":
            text = text.replace(character, f"\\{character}")
    return f"\\{text}" if text.startswith(" ") else text


def jar_files(given: tuple[str, ...]) -> list[str]:
    """The jar files that a setting names, folder by folder; ConfigurationError for what is not there."""
    files: list[str] = []
    for entry in given:
        path = Path(entry)
        if path.is_dir():
            files += sorted(str(file) for file in path.glob("*.jar"))
        elif "://" in entry or path.is_file():
            files.append(entry)
        else:
            raise ConfigurationError(
                f"the jar file or folder {entry} does not exist.",
                code="jar_missing",
                remedy="Correct [airflow_ft] spark_jars, or jars= of the pipeline.",
                path=entry,
            )
    return files
