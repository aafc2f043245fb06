"""One Spark session for the tests of what runs inside a driver."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from airflow_ft.spark.request import FIXED_CONF, HADOOPS_LOCAL


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    builder = SparkSession.builder.master("local[2]")
    conf = {
        **FIXED_CONF,
        "spark.driver.memory": "700m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.authenticate": "true",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.timeType.enabled": "true",
        "spark.hadoop.fs.file.impl": HADOOPS_LOCAL,
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
