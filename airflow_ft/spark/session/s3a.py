"""Hadoop's S3A in a driver's Spark: its jars, and the settings with which it reaches the bucket of the log.

The keys are set in the running JVM, so no argument, file of settings or environment has them. What Spark shows of
Hadoop's settings is redacted by their names (`spark.redaction.regex`). They are set for this bucket alone: what a job
reads from other buckets goes by its own settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_ft.clients.buckets import BucketPlace, BucketSettings
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.spark.request import listed
from airflow_ft.spark.session.connector import Connector, Jar, fetch, given, spark_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARTIFACT = "hadoop-aws"
_HADOOP = "3.5.0"
_SDK = "2.35.4"
_SDK_FILES = {
    "annotations": "6f36bd87155d1dd85d6efbdd29e532e3759a022211feb71affebee1aa34f04b8",
    "apache-client": "6eade21b482724ed0a4613eaa95d20e47e7a81304bd28538ac427fece94a7740",
    "arns": "c63cc29f76a8527e9e10b621703163df541dc5cb315508dc2898518602c75380",
    "auth": "6b601323004833fb4a857ffc95db4795e0e6320eb93e64b1246c655c9ff04994",
    "aws-core": "fdb5fc8f1a48d97fa7d04d3460fb42f6973c7b1bbe1b9d317871ef0162bcb623",
    "aws-query-protocol": "9b4cf9b78977cc9f5b4ceae9c435dedbde6a055a0f8d9e053eaca945715e2a9f",
    "aws-xml-protocol": "4f59176da2522c357b1993e4a890fde529f12f365795ef86269bde4a3984cd0d",
    "checksums": "94464af4374d08ecf33ca06ed4d03e1615529e547726e26b56abacefbeee7948",
    "checksums-spi": "88b5af85ac2d3c862be8856be4e683ab31932e4a5a3c1c45af864d2671ac7cec",
    "crt-core": "2c6aaa17bf9ccbb9d962dded4351e73decb197e3c5519970e0dae17e05d3df62",
    "endpoints-spi": "ef02441bda916959b8341290b49c68cc35538e1ad6f8629b75d8334dc6653e00",
    "http-auth": "3ec933a06e751a05e195eb3589209e23c44e1897263b6fcae34ef4cc63cd4491",
    "http-auth-aws": "c4acb92fdec90bfd9b67bfab8e41b69cd152c03cacc10281a8ab464791856e01",
    "http-auth-aws-eventstream": "709107552f302be3fa9e05969a3779f5c0f07fb809e6fa1fa571a6f0c61326dd",
    "http-auth-spi": "4495463406bb98eb136f2c3f3604ed5f08ec9974ebc3f34f2121b20679f61d5c",
    "http-client-spi": "728be89b2a07b595edb0adee3a2cbbbdd4cb1f4caddde0d08c3979fe2620dedb",
    "identity-spi": "188d73db7d4e2361654bc3c5a1b3eaeb445d0500fb012cc46c5d67975adf97bf",
    "json-utils": "80d67a6bb3e7eb49c7d4b6e4ba4c1463ed7da0192b795158328602dc131c5ecc",
    "metrics-spi": "c2a4ee90a21081317e2e6eba0c414d05d3d518aed2f86b1c1710a7367b450487",
    "netty-nio-client": "b82f8b33e5c85273a47da45ede884d7ccb31c9c2f69e6910a76c5c48fa1275dc",
    "profiles": "0f4ef7ca72ccd80dd49ebeaf7f3ce60a7d7a00da59a91aeeae6e91052bbacbd8",
    "protocol-core": "f2532eca6ba2142fe4821d5decb03c83a3e15dc8bfae2240e7f2efa75f9868b5",
    "regions": "77eae87b34ce96ecdf916a9bc06684dbeafcb6d38ef0513285fa5d5d6d41f5ca",
    "retries": "f99fb2f8c66d7e859955b3542d3af8f9de8f23a21d5e3250f0f2c5f18487e469",
    "retries-spi": "668638751d059c527ddd41ffa4dcebe36a7c14860ed56776df09b861c14dc7dd",
    "s3": "f23532c5223be9b0bfec0d72837ed09ed34dbdf8022818ba145b20076a78b4bc",
    "s3-transfer-manager": "0eec78870b3d0abc509a847072cf963cb2ae6e360dc6161a9449b3398c470476",
    "sdk-core": "fa559a4ce598852f3519c8f3b36250f583b0858a7611eedc4a81997778c617f4",
    "sts": "8d0f7816d3f96e3f00249f5d054d926e939a104bcf9ef57676ee0b16c59684d2",
    "third-party-jackson-core": "32f4252c6c2df8f3a4aff885e6dc77024ad6b4cb48455d07b461ec30c41643ea",
    "utils": "642aeef536a071668f0b772f05f9d21573abf6955e7b6fb5fdb893760cca10e8",
    "utils-lite": "e004806def5e22ec98edc48a133ff3317166255e1ba29d93d129e9fdfa64a7be",
}
"""SHA-256 by artifact of the AWS SDK."""
FILES = (
    Jar(
        "org.apache.hadoop",
        ARTIFACT,
        _HADOOP,
        "66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa",
    ),
    Jar(
        "software.amazon.s3.analyticsaccelerator",
        "analyticsaccelerator-s3",
        "1.3.1",
        "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e",
    ),
    Jar(
        "software.amazon.eventstream",
        "eventstream",
        "1.0.1",
        "0c37d8e696117f02c302191b8110b0d0eb20fa412fce34c3a269ec73c16ce822",
    ),
    Jar(
        "org.reactivestreams",
        "reactive-streams",
        "1.0.4",
        "f75ca597789b3dac58f61857b9ac2e1034a68fa672db35055a8fb4509e325f28",
    ),
    *(Jar("software.amazon.awssdk", name, _SDK, sha256) for name, sha256 in _SDK_FILES.items()),
)
"""Together with pyspark 4.2 everything that S3A needs."""
_PROVIDER = "org.apache.hadoop.fs.s3a.{}AWSCredentialsProvider"


def s3a(home: Path) -> Connector:
    """Return the jars for the Spark in this folder; ConfigurationError if its Hadoop is another one."""
    version = spark_version(home)
    found = sorted(home.glob("jars/hadoop-client-api-*.jar"))
    hadoop = found[-1].name.removeprefix("hadoop-client-api-").removesuffix(".jar") if found else "unknown"
    if hadoop != _HADOOP:
        raise ConfigurationError(
            f"Spark {version} has Hadoop {hadoop}, but a write-ahead log in a bucket was tried with {_HADOOP} only.",
            code="spark_unfit",
            remedy=f"Install pyspark 4.2, or name jars with hadoop-aws-{hadoop} in [airflow_ft] spark_jars.",
            version=version,
        )
    return Connector(version, _HADOOP, FILES, True, "S3A (hadoop-aws)")


def needed(home: Path, jars: Iterable[str], conf: Mapping[str, str]) -> list[str]:
    """Return the jars to add for a driver that reaches a bucket. Fetches what is not there yet.

    Raises:
        ConfigurationError: none are known for this Spark.
        StageError: they cannot be fetched.
    """
    packages = listed(conf.get("spark.jars.packages", ""))
    return [] if given(home, jars, packages, ARTIFACT) else fetch(s3a(home), conf)


def hadoop_settings(place: BucketPlace, settings: BucketSettings) -> Mapping[str, str]:
    """Return what S3A needs for a bucket. It holds secrets."""
    given = {
        "endpoint": settings.endpoint,
        "endpoint.region": settings.region,
        "path.style.access": "true",
        "connection.ssl.enabled": str(settings.endpoint.startswith("https://")).lower(),
        "aws.credentials.provider": _PROVIDER.format("Temporary" if settings.session_token else "Simple"),
        "access.key": settings.access_key_id,
        "secret.key": settings.secret_access_key,
        "session.token": settings.session_token,
        "committer.name": "file",
        # A store that is away: the task notices within a minute, and retries.
        "attempts.maximum": "3",
        "retry.limit": "3",
    }
    return {f"fs.s3a.bucket.{place.bucket}.{name}": value for name, value in given.items() if value}


def reach(spark: SparkSession, place: BucketPlace, settings: BucketSettings) -> None:
    """Let a running Spark reach a bucket, before it opens anything there."""
    conf = spark._jsc.hadoopConfiguration()
    for name, value in hadoop_settings(place, settings).items():
        conf.set(name, value)
