"""What Hadoop's servers have in common: a JVM, and settings as XML."""

import shutil
from collections.abc import Mapping
from xml.sax.saxutils import escape

from tools.servers.base import ServerError


def java(component: str, heap: str, classes: str, *arguments: str) -> list[str]:
    """Return the command of a small JVM; `component` is what tools/bootstrap.sh installs it by."""
    program = shutil.which("java")
    if program is None:
        raise ServerError(f"there is no java: run tools/bootstrap.sh {component}")
    options = [f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
    return [program, *options, "-cp", classes, *arguments]


def xml(values: Mapping[str, str | int]) -> str:
    """Return settings as a file of Hadoop."""
    rows = [
        f"<property><name>{key}</name><value>{escape(str(value))}</value></property>" for key, value in values.items()
    ]
    return "\n".join(["<configuration>", *rows, "</configuration>\n"])
