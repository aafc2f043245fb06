"""Which licences the dependencies of a release have, and whether software under Apache-2.0 can depend on them.

The package contains none of them: they are installed beside it. So weak copyleft (LGPL, MPL) is allowed, whose terms
are about the library itself. Refused are terms that would reach this package or forbid a use (GPL, AGPL, SSPL, BUSL,
non-commercial ones), and whatever says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from license_expression import ExpressionError, get_spdx_licensing

PERMISSIVE = {
    "0BSD",
    "Apache-2.0",
    "Artistic-1.0-Perl",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MIT-CMU",
    "PSF-2.0",
    "Python-2.0",
    "Unlicense",
    "Zlib",
}
WEAK_COPYLEFT = {"LGPL-2.1-only", "LGPL-2.1-or-later", "LGPL-3.0-only", "LGPL-3.0-or-later", "MPL-2.0"}
ALLOWED = PERMISSIVE | WEAK_COPYLEFT

_CLASSIFIERS = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: GNU Library or Lesser General Public License (LGPL)": "LGPL-3.0-or-later",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
LOOKED_UP = {
    "hdfs-native": "Apache-2.0",  # its repository; the distribution says nothing
    "openlineage_sql": "Apache-2.0",  # its repository; the distribution says nothing
    "protobuf": "BSD-3-Clause",  # its LICENSE; the metadata have no name that SPDX knows
    "text-unidecode": "Artistic-1.0-Perl OR GPL-2.0-or-later",  # its LICENSE.txt: either; the metadata list both
}
"""Distribution -> what a person has read, where the metadata do not say it."""


@dataclass(frozen=True)
class Dependency:
    """One distribution, and its licence as an SPDX expression (empty: it says nothing)."""

    name: str
    version: str
    licence: str

    @property
    def refused(self) -> str:
        """Why this package cannot depend on it; empty when it can."""
        if not self.licence:
            return "says nothing about its licence"
        try:
            return "" if _allowed(_spdx().parse(self.licence)) else "is not on the list of those allowed"
        except ExpressionError:
            return "has a licence that SPDX does not know"


def dependencies(sbom: Mapping[str, Any]) -> Iterator[Dependency]:
    """Those that a CycloneDX document names, by name."""
    for component in sorted(sbom["components"], key=lambda each: str(each["name"]).lower()):
        expressions = [_expression(each) for each in component.get("licenses", ())]
        licence = LOOKED_UP.get(component["name"]) or " AND ".join(f"({each})" for each in dict.fromkeys(expressions))
        yield Dependency(component["name"], component.get("version", ""), licence)


def _expression(entry: Mapping[str, Any]) -> str:
    if "expression" in entry:
        return str(entry["expression"])
    licence = entry["license"]
    return str(licence.get("id") or _CLASSIFIERS.get(licence["name"], licence["name"]))


def _allowed(expression: Any) -> bool:
    """Of alternatives one is enough."""
    licensing = _spdx()
    if isinstance(expression, licensing.OR):
        return any(map(_allowed, expression.args))
    if isinstance(expression, licensing.AND):
        return all(map(_allowed, expression.args))
    return str(expression) in ALLOWED


@cache
def _spdx() -> Any:
    """The rules of SPDX, which take a moment to read."""
    return get_spdx_licensing()
