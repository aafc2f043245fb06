"""Tells setuptools which packages there are; everything else stands in setup.cfg.

setup.cfg can either search for packages or list them, not both, and `dags/`, `docs/` and `plugins/` have to be added to
those that a search finds.
"""

from setuptools import find_packages, setup


def mapped(package: str, folder: str) -> list[str]:
    """The package that is installed from `folder`, with the packages below it."""
    return [package, *(f"{package}.{name}" for name in find_packages(folder))]


setup(
    packages=[
        *find_packages(include=["airflow_ft", "airflow_ft.*"]),
        "airflow_ft.docs",
        *mapped("airflow_ft.example_dags", "dags"),
        *mapped("airflow_ft.plugins", "plugins"),
    ]
)
