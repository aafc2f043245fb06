"""Template of a row's key, such as "orders:{id}": texts, and columns in braces. Imported at DAG parse."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from airflow_ft.protocol.arguments import is_template
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sinks.base.server_sink import ServerSink

_COLUMN = re.compile(r"\{\{\s*(\w+)\s*\}\}")
Parts = Sequence[tuple[str, str | None]]
"""The texts of a template, each with the column behind it; None: there is none."""


def parts_of(template: str, invalid: Callable[[str], Exception]) -> Parts:
    """Return the parts of a template. `invalid` makes the error for one that cannot be read, from the remedy."""
    try:
        found = list(string.Formatter().parse(template))
    except ValueError as error:
        raise invalid(f"Use braces around columns only ({error}).") from None
    if any(spec or conversion for _, _, spec, conversion in found):
        raise invalid("Name columns only, without a format: {id}.")
    return [(text, column) for text, column, _, _ in found]


class TemplateSink(ServerSink):
    """Base of a frozen dataclass that makes the keys of rows by a template."""

    __slots__ = ()

    template: ClassVar[str]
    """Name of the argument that is the template."""

    @property
    def parts(self) -> Parts:
        """Return the texts of the key's template, each with the column behind it; None: there is none."""
        return parts_of(self._template, self._key_invalid)

    @property
    def key_columns(self) -> Sequence[str]:
        """Return the columns that make the key."""
        return [column for _, column in self.parts if column]

    @property
    def _template(self) -> Any:
        return getattr(self, self.template)

    def _key_invalid(self, remedy: str) -> ConfigurationError:
        return self._invalid(self.template, self._template, remedy)

    def _check_template(self) -> None:
        """Raise unless the template can give each row a key of its own, as far as it is known by now."""
        if not is_template(self._template):
            self._check_key()
        elif isinstance(self._template, str):
            self._refuse_double_braces()

    def _refuse_double_braces(self) -> None:
        """Raise if the template has its columns in Jinja's braces by mistake.

        Then it has no column in single braces, and its Jinja is nothing but single names.
        """
        template = self._template
        single = _COLUMN.sub(r"{\1}", template)
        if single != template and "{{" not in single and "{%" not in single and "{" not in _COLUMN.sub("", template):
            raise self._key_invalid(f"Put single braces around columns: {single!r}. Double braces are Jinja.")

    def _check_key(self) -> None:
        parts = self.parts
        if not any(column for _, column in parts):
            raise self._key_invalid('Name at least one column in braces, such as "orders:{id}".')
        columns = [column for _, column in parts if column is not None]
        if "" in columns or len(set(columns)) < len(columns):
            raise self._key_invalid("Name each column once. A key contains no braces but those around columns.")
        if any(not text and index and column for index, (text, column) in enumerate(parts)):
            raise self._key_invalid('Put a text such as ":" between columns. Else two keys could be equal.')
