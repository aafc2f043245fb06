"""Hadoop's own configuration on this machine: the files in $HADOOP_CONF_DIR."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

LOCAL = "file:///"


def read_site(file: Path) -> dict[str, str]:
    """Return the settings of a file such as core-site.xml; empty if it is missing or damaged."""
    try:
        root = ElementTree.parse(file).getroot()  # noqa: S314 # Hadoop's own configuration
    except (OSError, ElementTree.ParseError):
        return {}
    return {each.findtext("name", "").strip(): each.findtext("value", "").strip() for each in root.iter("property")}


def default_file_system() -> str:
    """Return the file system in which Spark looks for paths without a scheme."""
    folder = os.environ.get("HADOOP_CONF_DIR")
    return (read_site(Path(folder) / "core-site.xml").get("fs.defaultFS") or LOCAL) if folder else LOCAL
