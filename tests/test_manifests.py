"""The files of docs/kubernetes: the schemas of Kubernetes know them, and they agree with each other."""

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

FOLDER = Path(__file__).parents[1] / "docs" / "kubernetes"
VALUES = "values.yaml"  # of Airflow's chart, which has a schema of its own
MANIFESTS = sorted(path.name for path in FOLDER.glob("*.yaml") if path.name != VALUES)
PREFIX = "AIRFLOW__AIRFLOW_FT__"


def load(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


@pytest.mark.parametrize("release", ["1.32", "1.37"])
@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_takes_the_manifest(name: str, release: str) -> None:
    for each in load(name):
        kubernetes_validate.validate(each, release, strict=True)


def test_the_chart_gets_the_settings_of_the_template() -> None:
    [template], [values] = load("task-template.yaml"), load(VALUES)
    [container] = template["spec"]["containers"]
    variables = {each["name"].removeprefix(PREFIX).lower(): each["value"] for each in container["env"]}
    assert variables == values["config"]["airflow_ft"]
    assert json.loads(variables["spark_conf"])["spark.kubernetes.container.image"] == container["image"]
    assert template["metadata"]["labels"] == values["workers"]["labels"]
    assert template["spec"]["serviceAccountName"] == values["workers"]["serviceAccount"]["name"]


def test_executors_start_the_program_of_the_image() -> None:
    [template] = load("executor-template.yaml")
    [program] = template["spec"]["containers"][0]["command"]
    assert f"COPY --chmod=0755 {Path(program).name} {program}" in (FOLDER / "Dockerfile").read_text()
    [policy] = load("network-policy.yaml")
    [rule] = policy["spec"]["ingress"]
    assert rule["from"][0]["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
