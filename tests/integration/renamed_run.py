"""A run without Airflow, in a process of its own: `python -m tests.integration.renamed_run FOLDER PIPELINE`."""

import json
import sys

import airflow_ft as ft


@ft.job
class Orders:
    output_mode = "update"

    def transform(self, spark, sources):
        return sources["orders"].groupBy("id").count()  # with state

    def split(self, batch):
        return {"lake": batch, "table": batch}


def main(folder: str, pipeline: str) -> None:
    result = ft.run(
        pipeline=pipeline,
        job=Orders,
        sources={"orders": ft.FileSource(path=f"{folder}/in", schema="id bigint")},
        sinks={
            "lake": ft.FilesSink(folder=f"{folder}/lake", name="lake"),
            "table": ft.SqliteSink(table="orders", conn_id="shop"),
        },
        spark_master="local[2]",
        spark_conf={"spark.driver.memory": "700m", "spark.sql.shuffle.partitions": "1"},
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
