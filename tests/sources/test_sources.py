"""Sources are checked where they are written, and become options of Spark's readers."""

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pendulum
import pytest

from airflow_ft.pipeline.templates import plain, rebuild
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sources import FileSource, KafkaSource, source_from_json
from airflow_ft.sources.kafka_options import kafka_options
from airflow_ft.sources.names import finds
from tests.raising import raises

BROKER = {"bootstrap.servers": "a:9092,b:9092"}


def _connection(**extra: Any) -> ConnectionInfo:
    return ConnectionInfo("kafka_default", "kafka", extra={**BROKER, **extra})


@pytest.mark.parametrize(
    ("arguments", "code", "argument"),
    [
        ({}, "argument_missing", "topics"),
        ({"topics": ["a"], "pattern": "b.*"}, "arguments_conflict", "topics"),
        ({"topics": "orders"}, "argument_invalid", "topics"),
        ({"topics": ["a,b"]}, "argument_invalid", "topics"),
        ({"topics": ["a"], "conn_id": ""}, "argument_missing", "conn_id"),
        ({"topics": ["a"], "starting_offsets": "now"}, "argument_invalid", "starting_offsets"),
        ({"topics": ["a"], "starting_offsets": dt.datetime(2026, 1, 1)}, "argument_invalid", "starting_offsets"),
        ({"topics": ["a", "b"], "starting_offsets": {"a": {0: 1}}}, "argument_invalid", "starting_offsets"),
        ({"topics": ["a"], "starting_offsets": {"a": {}}}, "argument_invalid", "starting_offsets"),
        ({"topics": ["a"], "starting_offsets": {"a": {0: -3}}}, "argument_invalid", "starting_offsets"),
        ({"topics": ["a"], "starting_offsets": {"a": {-1: 0}}}, "argument_invalid", "starting_offsets"),
        ({"topics": ["a"], "starting_offsets": "group_offsets"}, "argument_missing", "group_id"),
        ({"pattern": "a", "starting_offsets": "group_offsets", "group_id": "g"}, "arguments_conflict", "pattern"),
        ({"topics": ["a"], "group_id": ""}, "argument_invalid", "group_id"),
        ({"topics": ["a"], "isolation_level": "committed"}, "argument_invalid", "isolation_level"),
    ],
)
def test_a_kafka_source_that_cannot_work_is_refused(arguments: dict[str, Any], code: str, argument: str) -> None:
    with raises(ConfigurationError, code, argument=argument):
        KafkaSource(**arguments)


@pytest.mark.parametrize("option", ["failOnDataLoss", "kafka.group.id", "minOffsetsPerTrigger"])
def test_a_kafka_option_that_the_package_sets_is_refused(option: str) -> None:
    with raises(ConfigurationError, "option_reserved", option=option):
        KafkaSource(topics=["a"], options={option: "x"})


@pytest.mark.parametrize(
    ("arguments", "code", "argument", "remedy"),
    [
        ({"path": ""}, "argument_missing", "path", 'path="/data/orders"'),
        ({"path": "orders"}, "path_invalid", "path", "file:///data/orders"),
        ({"path": "./orders"}, "path_invalid", "path", "file:///data/orders"),
        ({"path": "~/orders"}, "path_invalid", "path", "file:///data/orders"),
        ({"path": "file:orders"}, "path_invalid", "path", "file:///data/orders"),
        ({"path": "file://data/orders"}, "path_invalid", "path", "'file:///data/orders'"),
        ({"path": "s3://bucket/orders"}, "path_invalid", "path", "'s3a://bucket/orders'"),
        ({"path": "https://example.com/orders"}, "path_invalid", "path", "hdfs"),
        ({"path": "kafka://orders"}, "path_invalid", "path", "hdfs"),
        ({"format": "avro"}, "argument_invalid", "format", "parquet"),
        ({"schema": None}, "argument_missing", "schema", 'schema="id bigint'),
    ],
)
def test_a_file_source_that_cannot_work_is_refused(
    arguments: dict[str, Any], code: str, argument: str, remedy: str
) -> None:
    with raises(ConfigurationError, code, argument=argument) as caught:
        FileSource(**{"path": "/x", "schema": "n int", **arguments})
    assert caught.error is not None and remedy in caught.error.remedy


def test_only_one_bound_of_a_batch_of_files_is_taken() -> None:
    both = ["max_files_per_trigger", "max_bytes_per_trigger"]
    with raises(ConfigurationError, "arguments_conflict", arguments=both):
        FileSource(path="/x", schema="n int", max_files_per_trigger=1, max_bytes_per_trigger="1")


@pytest.mark.parametrize("bound", ["max_files_per_trigger", "max_bytes_per_trigger", "max_offsets_per_trigger"])
def test_a_bound_of_nothing_is_refused(bound: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        if bound == "max_offsets_per_trigger":
            KafkaSource(topics=["a"], max_offsets_per_trigger=0)
        else:
            FileSource(**{"path": "/x", "schema": "n int", bound: 0})  # type: ignore[arg-type]
    assert bound in caught.value.headline and "at least 1" in caught.value.remedy


@pytest.mark.parametrize(
    ("options", "code", "option"),
    [
        ({"CleanSource": "delete"}, "option_unsafe", "cleanSource"),
        ({"maxFilesPerTrigger": "1"}, "option_reserved", "maxFilesPerTrigger"),
        ({"maxbytespertrigger": 1}, "option_reserved", "maxBytesPerTrigger"),
        ({"FileNameOnly": True}, "option_unsafe", "fileNameOnly"),
        ({"ignoreMissingFiles": "true"}, "option_unsafe", "ignoreMissingFiles"),
        ({"ignorecorruptfiles": "True"}, "option_unsafe", "ignoreCorruptFiles"),
        ({"ignoreMissingFiles": True}, "option_unsafe", "ignoreMissingFiles"),
    ],
)
def test_an_option_that_would_lose_files_is_refused(options: dict[str, Any], code: str, option: str) -> None:
    with raises(ConfigurationError, code, option=option):
        FileSource(path="/x", schema="n int", options=options)


@pytest.mark.parametrize(
    "source",
    [
        KafkaSource(topics=["a", "b"], max_offsets_per_trigger=5, options={"minPartitions": "4"}),
        KafkaSource(pattern="a.*", starting_offsets="latest", group_id="g", commit_offsets=False),
        KafkaSource(topics=["a"], starting_offsets={"a": {0: 5, 1: -2}}),
        KafkaSource(topics=["a"], starting_offsets=dt.datetime(2026, 1, 1, 5, tzinfo=dt.UTC)),
        FileSource(path="/x", schema="n int", options={"multiLine": "true"}),
        FileSource(path="/x", format="text"),
        FileSource(path="hdfs://namenode:8020/in/*", format="text"),
        FileSource(path="file:/x:y", format="text"),
        FileSource(path="/a:b/c", format="text"),
        FileSource(path="/x", format="text", max_bytes_per_trigger=5),
    ],
)
def test_a_source_survives_being_plain_data(source: KafkaSource | FileSource) -> None:
    assert source_from_json(json.loads(json.dumps(source.to_json()))) == source


def test_an_unknown_kind_is_refused() -> None:
    with raises(ConfigurationError, "newer_release", kind="tables"):
        source_from_json({"kind": "tables"})


def test_an_option_that_differs_from_the_connection_is_refused() -> None:
    """The connection's was taken in silence."""
    same = KafkaSource(topics=["a"], options={"kafka.security.protocol": "SSL", "kafka.max.poll.records": "5"})
    options = same.reader_options(_connection(**{"security.protocol": "SSL"}))
    assert (options["kafka.security.protocol"], options["kafka.max.poll.records"]) == ("SSL", "5")
    with raises(ConfigurationError, "arguments_conflict", settings=["kafka.security.protocol"]):
        same.reader_options(_connection(**{"security.protocol": "PLAINTEXT"}))


def test_options_of_the_kafka_reader() -> None:
    options = KafkaSource(topics=["a", "b"], max_offsets_per_trigger=7).reader_options(_connection())
    assert options == {
        "kafka.bootstrap.servers": "a:9092,b:9092",
        "kafka.isolation.level": "read_committed",
        "subscribe": "a,b",
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": "7",
    }
    at = dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    options = KafkaSource(pattern="x.*", starting_offsets=at).reader_options(_connection())
    assert options["startingTimestamp"] == "1767218400000" and options["subscribePattern"] == "^(?:x.*)$"
    assert options["startingOffsetsByTimestampStrategy"] == "latest" and "startingOffsets" not in options
    assert KafkaSource(pattern="x.*", starting_offsets=pendulum.instance(at)).reader_options(_connection()) == options
    just_behind = KafkaSource(topics=["a"], starting_offsets=at + dt.timedelta(microseconds=1))
    assert just_behind.reader_options(_connection())["startingTimestamp"] == "1767218400001", "none of before"
    options = KafkaSource(topics=["a"], starting_offsets={"a": {0: 5}}).reader_options(_connection())
    assert options["startingOffsets"] == '{"a": {"0": 5}}'


def test_a_connection_speaks_librdkafka_and_becomes_java() -> None:
    options = kafka_options(
        _connection(
            **{
                "security.protocol": "sasl_ssl",
                "sasl.mechanisms": "SCRAM-SHA-512",
                "sasl.username": 'u"1',
                "sasl.password": "p\\w",
                "group.id": "x",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "ssl.ca.pem": "PEM",
                "ssl.endpoint.identification.algorithm": "none",
            }
        )
    )
    assert options == {
        "kafka.bootstrap.servers": "a:9092,b:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="u\\"1" password="p\\\\w";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "PEM",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }


def test_certificates_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("CA")
    (tmp_path / "cert").write_text("CERT")
    (tmp_path / "key").write_text("KEY")
    options = kafka_options(
        _connection(
            **{
                "security.protocol": "SSL",
                "ssl.ca.location": str(tmp_path / "ca"),
                "ssl.certificate.location": str(tmp_path / "cert"),
                "ssl.key.location": str(tmp_path / "key"),
            }
        )
    )
    assert options["kafka.ssl.truststore.certificates"] == "CA"
    assert options["kafka.ssl.keystore.certificate.chain"] == "CERT" and options["kafka.ssl.keystore.key"] == "KEY"
    assert not any(name.endswith("ca.location") or "certificate.location" in name for name in options)
    with raises(ConfigurationError, "certificate_unreadable", path=str(tmp_path / "missing")):
        kafka_options(_connection(**{"ssl.ca.location": str(tmp_path / "missing")}))


def test_host_and_port_of_the_connection_do_as_well() -> None:
    assert kafka_options(ConnectionInfo("k", "kafka", host="h")) == {"kafka.bootstrap.servers": "h:9092"}
    with raises(ConfigurationError, "connection_invalid", setting="bootstrap.servers"):
        kafka_options(ConnectionInfo("k", "kafka"))


def test_a_mechanism_that_needs_java_says_so() -> None:
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    with raises(ConfigurationError, "connection_invalid", setting="sasl.jaas.config"):
        kafka_options(_connection(**given))
    assert "kafka.sasl.jaas.config" in kafka_options(_connection(**given, **{"sasl.jaas.config": "x required;"}))


def test_options_of_the_file_reader() -> None:
    source = FileSource(path="/x", schema="n int", max_files_per_trigger=2)
    assert source.reader_options() == {"mode": "FAILFAST", "maxFileAge": "100000000d", "maxFilesPerTrigger": "2"}
    assert source.reader_options(streaming=False) == {"mode": "FAILFAST"}
    bytes = FileSource(path="/x", schema="n int", max_bytes_per_trigger=2_000_000)
    assert bytes.reader_options() == {"mode": "FAILFAST", "maxFileAge": "100000000d", "maxBytesPerTrigger": "2000000"}
    assert bytes.reader_options(streaming=False) == {"mode": "FAILFAST"}
    given = FileSource(
        path="/x", schema="n int, _corrupt_record string", options={"MODE": "PERMISSIVE", "maxfileage": "1d"}
    )
    assert given.reader_options() == {"MODE": "PERMISSIVE", "maxfileage": "1d"}


@pytest.mark.parametrize(
    ("format", "options", "code", "fields"),
    [
        ("json", {"mode": "DROPMALFORMED"}, "option_unsafe", {"option": "mode"}),
        ("csv", {"Mode": "dropmalformed"}, "option_unsafe", {"option": "mode"}),
        ("json", {"mode": "lenient"}, "argument_invalid", {"option": "mode"}),
        ("csv", {"mode": "PERMISSIVE"}, "argument_invalid", {"column": "_corrupt_record"}),
        (
            "json",
            {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "broken"},
            "argument_invalid",
            {"column": "broken"},
        ),
        ("csv", {"enforceSchema": "true"}, "option_unsafe", {"option": "enforceSchema"}),
        ("json", {"allowSingleQuotes": True}, "option_unsafe", {"option": "allowSingleQuotes"}),
        ("json", {"allowcomments": "true"}, "option_unsafe", {"option": "allowComments"}),
        ("json", {"primitivesAsString": "true"}, "option_unsafe", {"option": "primitivesAsString"}),
        ("csv", {"locale": "de-DE"}, "option_unsafe", {"option": "locale", "value": "de-DE"}),
    ],
)
def test_options_that_lose_rows_or_change_values_are_refused(
    format: str, options: dict[str, Any], code: str, fields: dict[str, str]
) -> None:
    with raises(ConfigurationError, code, **fields) as caught:
        FileSource(path="/x", format=format, schema="n int", options=options)
    assert caught.error is not None and caught.error.remedy
    FileSource(path="/x", format="text", options=options)


@pytest.mark.parametrize("name", ["encoding", "charset"])
def test_texts_have_no_encoding_but_that_of_their_columns(name: str) -> None:
    """Spark looks for the separator in it, and converts nothing."""
    with raises(ConfigurationError, "option_unsafe", option=name, value="ISO-8859-1"):
        FileSource(path="/x", format="text", options={name.title(): "ISO-8859-1"})
    FileSource(path="/x", format="text", options={name: "UTF-8"})


def test_options_may_be_truth_values() -> None:
    options: Any = {"ignoreMissingFiles": False, "cleanSource": "off", "multiLine": True}
    assert FileSource(path="/x", schema="n int", options=options).reader_options()["multiLine"] is True


def test_bounds_and_starts_in_jinja_are_checked_once_rendered() -> None:
    declared = KafkaSource(
        topics=["a"], max_offsets_per_trigger="{{ params.slice }}", starting_offsets="{{ params.start }}"
    )
    files = FileSource(path="/x", schema="n int", max_files_per_trigger="{{ params.slice }}")

    either = replace(files, max_bytes_per_trigger="{{ params.bytes }}")
    either = replace(either, max_files_per_trigger="None", max_bytes_per_trigger="7")
    assert (either.max_files_per_trigger, either.max_bytes_per_trigger) == (None, 7)
    with raises(ConfigurationError, "arguments_conflict"):
        replace(either, max_files_per_trigger="3")

    def rendered(slice: str, start: str) -> tuple[KafkaSource, FileSource]:
        later = replace(declared, max_offsets_per_trigger=slice, starting_offsets=start)
        return later, replace(files, max_files_per_trigger=slice)

    kafka, folder = rendered("5", "2026-11-24 00:00:00+00:00")
    assert (kafka.max_offsets_per_trigger, folder.max_files_per_trigger) == (5, 5)
    assert kafka.starting_offsets == dt.datetime(2026, 11, 24, tzinfo=dt.UTC)
    assert kafka.to_json() == replace(kafka).to_json() and KafkaSource.from_json(kafka.to_json()) == kafka
    for nothing in ("", "None"):
        kafka, folder = rendered(nothing, "latest")
        assert kafka.max_offsets_per_trigger is None is folder.max_files_per_trigger
        assert kafka.starting_offsets == "latest"
    for slice in ("0", "many"):
        with pytest.raises(ConfigurationError) as caught:
            rendered(slice, "latest")
        assert "max_offsets_per_trigger" in caught.value.headline and repr(slice) in caught.value.headline
    for start in ("yesterday", "2026-11-24T00:00:00"):
        with raises(ConfigurationError, "argument_invalid", argument="starting_offsets"):
            rendered("1", start)


@pytest.mark.parametrize("time", ["2026-11-24 00:00:00+00:00", dt.datetime(2026, 11, 24, tzinfo=dt.UTC)])
@pytest.mark.parametrize(
    "template", ["{{ data_interval_start }}", "{{ params.get('starting_offsets') or data_interval_start }}"]
)
def test_a_run_may_not_render_the_start_as_a_time(time: Any, template: str) -> None:
    """If a run fails before it publishes, the next run renders a later time and skips the records in between."""
    declared = KafkaSource(topics=["a"], starting_offsets=template)

    def rendered(start: Any) -> KafkaSource:
        return rebuild({"a": declared}, {"a": {**plain(declared), "starting_offsets": start}}, kind="source")["a"]

    with raises(ConfigurationError, "argument_invalid", argument="starting_offsets", source="a"):
        rendered(time)
    assert rendered("earliest").starting_offsets == "earliest"


@pytest.mark.parametrize(
    ("option", "meant"), [("headers", "header"), ("multilines", "multiLine"), ("date_format", "dateFormat")]
)
def test_a_misspelt_option_of_a_reader_is_refused(option: str, meant: str) -> None:
    with raises(ConfigurationError, "option_unknown", option=option) as caught:
        FileSource(path="/data", format="csv", schema="id bigint", options={option: "true"})
    assert caught.error is not None and caught.error.remedy == f"Did you mean {meant}?"


@pytest.mark.parametrize("option", ["HEADER", "multiline", "samplingRatio", "quoteAll", "charset", "escapeQuotes"])
def test_an_option_that_spark_may_know_is_kept(option: str) -> None:
    FileSource(path="/data", format="csv", schema="id bigint", options={option: "false"})


@pytest.mark.parametrize(
    ("path", "place", "found"),
    [
        ("/data/visits/2026-01-02/*.csv", "file:///data/visits/2026-01-01/a.csv", False),
        ("/data/*/orders", "file:///mnt/eu/orders/a", False),
        ("/data/*/orders", "file:///data/eu/orders/k=1/a", True),
        ("hdfs://node:8020/data/[ab]?", "hdfs://node:8020/data/a1/a", True),
        ("hdfs:///data/[ab]?", "hdfs://node:8020/data/a1/a", True),
        ("hdfs://node:8020/data/[ab]?", "hdfs://other/data/a1/a", False),
        ("s3a://new/in/*", "s3a://old/in/a.json", False),
        ("s3a://in/data/*", "file:///data/a.json", False),
        ("/data/[^a]*", "file:///data/ab/a", False),
        (r"/data/\*x", "file:///data/*x/a", True),
        ("/data/{a/x,b}/c", "file:///data/a/x/c/a", True),
        ("file:/data//a/", "file:///data/a/b", True),
        ("/data/a", "file:///data/ab/b", False),
    ],
)
def test_a_path_finds_files_as_hadoop_matches_names(path: str, place: str, found: bool) -> None:
    assert finds(path, place) is found
