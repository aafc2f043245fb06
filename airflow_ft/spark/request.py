"""Request to a Spark driver, and its result: plain data, written into a private file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from airflow_ft.clients.bucket_limits import check_bucket_spark, refuse_for_buckets
from airflow_ft.clients.buckets import BucketSettings
from airflow_ft.protocol.arguments import check_job
from airflow_ft.protocol.backpressure import RETAINED_BATCHES
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.dead_letters import DeadLetters
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.inline_job import InlineJob
from airflow_ft.protocol.model import CheckpointingMode, RunKey, SparkPosition
from airflow_ft.protocol.numbers import Numbers
from airflow_ft.protocol.secrets import HIDDEN, secret_values, without_secrets
from airflow_ft.sources import source_from_json
from airflow_ft.sources.kafka_options import quoted
from airflow_ft.spark.session.kubernetes import is_kubernetes

# What the protocol rests on; a user's `conf` must not say otherwise.
FIXED_CONF = {
    # Two attempts of one stateful task may both upload state, while the rows of the other one are kept (I1).
    "spark.speculation": "false",
    # A task's files appear in one step, when the task is committed.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Timestamps as INT64 microseconds, never INT96, and days as the calendar of today counts them.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    # A file that is gone or damaged would be left out without a word, and counts as read (I10).
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # After lost executors a task may compute other rows, of which some readers already have the first ones. Spark then
    # computes all that follows again. (Not on by default before 4.2; 4.0 does not know it.)
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
    # The offset log as `spark.state.location_files` reads it. (4.2 is the first to know others, and these need them.)
    "spark.sql.streaming.offsetLog.formatVersion": "1",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "false",
    "spark.sql.streaming.queryEvolution.enableSinkEvolution": "false",
}

HADOOPS_LOCAL = "org.apache.hadoop.fs.LocalFileSystem"

DEFAULT_CONF = {
    "spark.driver.memory": "1g",
    "spark.log.level": "WARN",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # A full snapshot with each tenth micro-batch; the newest one is put into the location each minute (`state_files`).
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "10",
    "spark.sql.streaming.stateStore.maintenanceInterval": "60s",
    # Each look at a folder would leave its listing in a cache that no other look can use, up to 250 MB.
    "spark.sql.hive.filesourcePartitionFileCacheSize": "0",
    "spark.sql.streaming.stopTimeout": "10s",
    # A run that ends during a maintenance waits for it, with Spark's own settings for six minutes.
    "spark.sql.streaming.stateStore.maintenanceShutdownTimeout": "5s",
    "spark.sql.streaming.stateStore.maintenanceForceShutdownTimeout": "1s",
    "spark.sql.redaction.options.regex": "(?i)url|secret|password|token|jaas|key|truststore|keystore",
    # Not Hive's, whose `rename` replaces no file (`airflow_ft.spark.driver.local_files`).
    "spark.hadoop.fs.file.impl": HADOOPS_LOCAL,
}


UNSEEN_CONF = {
    # What Spark keeps of jobs that have ended is for its UI alone, and grows for thousands of micro-batches.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
}
"""Settings without Spark's UI."""


def is_local(master: str) -> bool:
    """Return whether driver and executors are one process. `local-cluster[...]` has executors of its own."""
    return master == "local" or master.startswith("local[")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRequest:
    """One attempt at staging a run of a pipeline.

    Attributes:
        epoch, attempt: from the store (`take_epoch`, `begin_stage`).
        base, base_is_clean, last_published: the pipeline's, read together BEFORE `begin_stage` marked the base unclean.
            A publication from this base must follow that number, or another process has published in between.
            AT_MOST_ONCE has no base, because each attempt starts over.
        former_base: the base that AT_MOST_ONCE does not continue. It has positions of sources that are left out now.
        incarnation: in the driver, in place of a base, when everything is read again
            (`spark.state.locations.incarnation_of`).
        job: "package.module" or "package.module:Name", or source of the DAG file.
        job_arguments: keyword arguments for it (plain JSON).
        sources: source name -> `to_json` of it, in a fixed order.
        connections: connection id -> connection, for sources.
        sinks: names that `split` has to return.
        optional_sinks: names that it may return.
        dead_letters: one of these, and how many rows it may get.
        checkpointing: the pipeline's; of a scheduled one its timeout counts here.
        streaming: the stage triggers a checkpoint every `checkpointing.interval` until it is stopped.
        restart: a stream's strategy for a failed job (`RestartStrategy`, plain data); None: the stream ends.
        wal_root: absolute path or URI, the same for the driver and all readers.
        master, conf: for spark-submit.
        jars: jar files or folders of them. A Kafka connector that a source needs and that is not among them is chosen
            and fetched (`spark.session.connector`).
        packages: further Maven coordinates.
        python_path: folders to import the job from, besides those of the running interpreter.
        keep_session: seconds for which the JVM waits for the next run; 0: it ends with this one.
        standby: a stream keeps a second driver that takes over if this one dies (`spark.task.standby`).
        session_name: pipelines with one name share sessions; "": only this pipeline.
        buckets: settings of the connections to buckets of the log (`BucketSettings`, plain data with secrets).
        ask_sinks: whether the task answers which columns its sinks would not take (`airflow_ft.spark.fitting`).
        retained_batches: number of micro-batches for which Spark keeps state, besides those of the delivered
            checkpoints that are retained. A rewind goes back to the last delivered one, so staging ends when that many
            wait for delivery. The next run continues.
    """

    pipeline: str
    run: RunKey
    epoch: int
    attempt: int
    store_url: str = field(repr=False)
    wal_root: str
    job: str | InlineJob
    sinks: tuple[str, ...]
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    connections: Mapping[str, ConnectionInfo] = field(default_factory=dict, repr=False)
    optional_sinks: tuple[str, ...] = ()
    dead_letters: DeadLetters | None = None
    job_arguments: Mapping[str, Any] = field(default_factory=dict)
    base: SparkPosition | None = None
    base_is_clean: bool = False
    former_base: SparkPosition | None = None
    incarnation: str = ""
    last_published: int = 0
    checkpointing: CheckpointConfig = field(default_factory=CheckpointConfig)
    streaming: bool = False
    restart: Mapping[str, Any] | None = None
    master: str = ""
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    jars: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    python_path: tuple[str, ...] = ()
    keep_session: float = 0.0
    standby: bool = False
    session_name: str = ""
    retained_batches: int = RETAINED_BATCHES
    ask_sinks: bool = False
    buckets: Sequence[Mapping[str, str]] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        check_job(self.job)
        if self.starts_from_scratch:
            object.__setattr__(self, "former_base", self.base or self.former_base)
            object.__setattr__(self, "base", None)
            object.__setattr__(self, "base_is_clean", False)
        if not self.sinks:
            raise ConfigurationError(
                "the pipeline has no sink that is not optional.",
                code="argument_missing",
                pipeline=self.pipeline,
                remedy="Declare a sink for which the job always returns rows.",
                argument="sinks",
            )
        for name, value in self.conf.items():
            if FIXED_CONF.get(name, value) != value:
                raise ConfigurationError(
                    f"the Spark setting {name}={value} would break exactly-once delivery.",
                    code="spark_setting_unsafe",
                    pipeline=self.pipeline,
                    remedy=f"Remove {name} from spark_conf: airflow-ft sets it to {FIXED_CONF[name]}.",
                    setting=name,
                    value=value,
                )
        if self.standby:
            check_standby(self.master or self.conf.get("spark.master", ""), streaming=self.streaming)
        if self.keep_session:
            check_kept(self.master or self.conf.get("spark.master", ""))
        refuse_for_buckets(self.wal_root, keep_session=self.keep_session)
        check_bucket_spark(self.wal_root, self.master, self.conf)
        for source in self.sources.values():
            source_from_json(source)

    @property
    def job_name(self) -> str:
        """Return what messages call the job."""
        return self.job if isinstance(self.job, str) else self.job.reference

    @property
    def starts_from_scratch(self) -> bool:
        """Return whether each attempt starts at the sources' current positions, without progress from earlier
        attempts.
        """
        return self.checkpointing.mode is CheckpointingMode.AT_MOST_ONCE

    def to_json(self) -> dict[str, Any]:
        """Plain data. It holds credentials: only for the private file of the driver."""
        return asdict(replace(self, checkpointing=CheckpointConfig())) | {"checkpointing": self.checkpointing.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StageRequest:
        """The inverse of `to_json`."""
        values = dict(data)
        values["run"] = RunKey(**values["run"])
        if not isinstance(values["job"], str):
            values["job"] = InlineJob.from_json(values["job"])
        for name in ("base", "former_base"):
            values[name] = SparkPosition(**values[name]) if values[name] else None
        values["checkpointing"] = CheckpointConfig.from_json(values["checkpointing"])
        values["connections"] = {name: ConnectionInfo(**value) for name, value in values["connections"].items()}
        values["dead_letters"] = DeadLetters(**values["dead_letters"]) if values["dead_letters"] else None
        for name in ("sinks", "optional_sinks", "jars", "packages", "python_path", "buckets"):
            values[name] = tuple(values[name])
        return cls(**values)

    def secrets(self) -> tuple[str, ...]:
        """Return what must not appear in any log or message: passwords, the store's URL, secret-looking settings."""
        found = secret_values((self.store_url, self.conf, [each.extra for each in self.connections.values()]))
        found.update(connection.password for connection in self.connections.values())
        found.update(secret for each in self.buckets for secret in BucketSettings(**each).secrets)
        found |= {form for text in found for form in (unquote(text), quoted(text))}  # of a URL, and in a line of JAAS
        if "@" in self.store_url:
            found.add(self.store_url)
        long = (text for text in found if len(text) >= 4 and text.lower() not in ("true", "false"))
        return tuple(sorted(long, key=len, reverse=True))

    def redactor(self) -> Callable[[str], str]:
        """Return a function that hides `secrets` in a text, and values that follow the name of a secret."""
        secrets = self.secrets()

        def hide(text: str) -> str:
            for secret in secrets:
                text = text.replace(secret, HIDDEN)
            return str(without_secrets(text))

        return hide


@dataclass(frozen=True, slots=True)
class StageResult:
    """Result of a successful attempt at staging.

    `numbers`: published numbers, ascending, at most the newest 1,000. `before`, `first`: how many came before these,
    and the first of them (0: none). `rows`: by sink name, over them all. `position`: Spark's position now, for
    `end_stage` (None: a static job, which has none). `complete`: all input from its beginning is read. `undrained`: why
    a requested drain had nothing to deliver. `output_mode`: of the query ("append" also for a static job).
    """

    numbers: tuple[int, ...]
    rows: Mapping[str, int]
    position: SparkPosition | None
    complete: bool = True
    before: int = 0
    first: int = 0
    undrained: str = ""
    output_mode: str = "append"

    @property
    def published(self) -> Numbers:
        """All that it published."""
        first = self.first or (self.numbers[0] if self.numbers else 0)
        return Numbers(self.numbers, self.before + len(self.numbers), first)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StageResult:
        """The inverse of `to_json`."""
        position = SparkPosition(**data["position"]) if data["position"] else None
        return cls(**{**data, "numbers": tuple(data["numbers"]), "position": position})


def check_standby(master: str, *, streaming: bool, keep_session: object = None) -> None:
    """Raise ConfigurationError for what does not go together with a standby driver; `master`: "" if it is unknown."""
    if not streaming:
        raise ConfigurationError(
            "standby is for streams, but this pipeline is scheduled.",
            code="needs_streaming",
            remedy="Add streaming=True, or leave standby out. For a quick start of scheduled runs, give keep_session.",
            argument="standby",
        )
    if keep_session:
        raise ConfigurationError(
            "standby and keep_session exclude each other: the standby starts with a JVM of its own.",
            code="arguments_conflict",
            remedy="Leave one of them out.",
            arguments=["standby", "keep_session"],
        )
    if master and not is_local(master):
        raise ConfigurationError(
            f"standby works with a local Spark master, and not with {master!r}, where a second driver would hold"
            " executors all the time.",
            code="arguments_conflict",
            remedy='Leave standby out, or give spark_master="local[*]".',
            arguments=["standby", "spark_master"],
            value=master,
        )


def check_kept(master: str) -> None:
    """Raise ConfigurationError for a master with which no session is kept between runs; `master`: "" if unknown."""
    if is_kubernetes(master):
        raise ConfigurationError(
            f"keep_session does not go together with {master!r}, where executors belong to the pod of one task.",
            code="arguments_conflict",
            remedy="Leave keep_session out, or give timedelta(0) if [airflow_ft] keep_session is set.",
            arguments=["keep_session", "spark_master"],
            value=master,
        )


def listed(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return what a setting lists, which may be text with commas."""
    parts = given.split(",") if isinstance(given, str) else given
    return tuple(part.strip() for part in parts if part.strip())
