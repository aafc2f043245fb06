"""A job that is written in the DAG file: its source, as it travels to Spark's driver (`airflow_ft.job`)."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from airflow_ft.protocol.ddl import check_ddl
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.shown_source import shown_source

MOST_BYTES = 256 * 1024
"""The decision log keeps the source of each version of a job."""

_DECLARED = "__airflow_ft_job__"


@dataclass(frozen=True, slots=True)
class Part:
    """A definition, an import or a constant: its text, and the line of the file at which that begins."""

    line: int
    text: str


@dataclass(frozen=True, slots=True, repr=False)
class InlineJob:
    """Source of a function or class, enough to create it in a process that does not import its file.

    `name`: of the function or class. `file`: whole path, for tracebacks. `parts`: in the order of execution. The last
    one is the job. `postponed`: its file has `from __future__ import annotations`. `divides`: it has a `split`, or may
    have one.

    Raises:
        ConfigurationError: the source is longer than 256 KB.
    """

    name: str
    file: str
    parts: tuple[Part, ...]
    postponed: bool = False
    divides: bool = True

    def __post_init__(self) -> None:
        size = sum(len(part.text.encode()) for part in self.parts)
        if size > MOST_BYTES:
            raise ConfigurationError(
                f"the job {self.reference} and what it uses have {size:,} bytes of source code. At most {MOST_BYTES:,}"
                " bytes are allowed.",
                code="job_too_large",
                remedy='Move it into a module, and name the module: job="package.module".',
                job=self.reference,
                size=size,
            )

    @property
    def reference(self) -> str:
        """Return its name in messages, without a path of the machine: "orders.py:transform"."""
        return f"{PurePath(self.file).name}:{self.name}"

    @property
    def source(self) -> str:
        """Return the whole source as one text, independent of where its parts are in the file."""
        return self._joined(part.text for part in self.parts)

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of `source`, in hex."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def shown_source(self) -> str:
        """`source` for people, in which text that is given to what is called like a secret is hidden."""
        return self._joined(shown_source(part.text) for part in self.parts)

    def _joined(self, parts: Iterable[str]) -> str:
        first = ("from __future__ import annotations",) if self.postponed else ()
        return "\n\n".join([*first, *parts])

    def check_arguments(self, given: Collection[str]) -> None:
        """Raise ConfigurationError that names arguments (`job_args`) that it does not take, or that it lacks.

        Check nothing if its source does not show them: a class may get its constructor from elsewhere.
        """
        definitions = {
            node.name: node
            for part in self.parts
            for node in _statements(part.text)
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        found = _taken_by(definitions.get(self.name), definitions)
        if found is None:
            return
        needed, optional, takes_any = found
        unknown = [] if takes_any else [name for name in given if name not in needed and name not in optional]
        missing = [name for name in needed if name not in given]
        if not unknown and not missing:
            return
        what = [f"does not take {', '.join(unknown)}"] if unknown else []
        what += [f"needs {', '.join(missing)}"] if missing else []
        remedy = [f"Remove {', '.join(unknown)} from job_args"] if unknown else []
        remedy += [f"{'and add' if unknown else 'Add'} {', '.join(missing)} to job_args"] if missing else []
        known = ", ".join([*needed, *optional]) or "no arguments"
        raise ConfigurationError(
            f"the job {self.reference} {' and '.join(what)}. job_args has {', '.join(given) or 'nothing'}.",
            code="argument_unknown" if unknown else "argument_missing",
            remedy=f"{' '.join(remedy)}. Or change the job: it takes {known}.",
            job=self.reference,
            unknown=unknown,
            missing=missing,
        )

    def check_split(self, required: Collection[str], optional: Collection[str]) -> None:
        """Raise ConfigurationError if `split` returns names that are not those of the sinks.

        Check nothing unless each `return` in it is a dictionary whose keys are text.
        """
        for names in _returned(self.parts[-1].text if self.parts else ""):
            missing = [name for name in required if name not in names]
            unknown = sorted(names.difference(required, optional))
            if not missing and not unknown:
                continue
            what = [f"returns nothing for {', '.join(missing)}"] if missing else []
            what += [f"returns rows for {', '.join(unknown)}, which is not a sink of the pipeline"] if unknown else []
            raise ConfigurationError(
                f"split of the job {self.reference} {' and '.join(what)}.",
                code="split_unfit",
                remedy=f"Return a DataFrame for each sink: {', '.join([*required, *optional])}.",
                job=self.reference,
                missing=missing,
                unknown=unknown,
            )

    def check_schemas(self) -> None:
        """Raise ConfigurationError for a schema that `parse_json` gets as text, and that Spark could not read."""
        nodes = [node for part in self.parts for node in _statements(part.text)]
        constants = {
            target.id: node.value
            for node in nodes
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        if any(getattr(node, "name", "") == "parse_json" for node in nodes):  # a function of the author's own
            return
        calls = [each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Call)]
        for call in calls:
            if getattr(call.func, "id", getattr(call.func, "attr", "")) != "parse_json":
                continue
            by_name = [each.value for each in call.keywords if each.arg == "schema"]
            for given in (*call.args[1:2], *by_name):
                value = constants.get(given.id) if isinstance(given, ast.Name) else given
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    check_ddl(value.value, f"parse_json in the job {self.reference}")

    def check_sources(self, sources: Collection[str]) -> None:
        """Raise ConfigurationError if `transform` reads a source that the pipeline does not declare.

        Check only the statements before the first branch or loop: a job may serve several pipelines.
        """
        for name in _read_at_once(self._entry()):
            if name not in sources:
                raise ConfigurationError(
                    f"the job {self.reference} asks for source {name!r}, which the pipeline does not declare. Declared:"
                    f" {', '.join(sources)}.",
                    code="source_unknown",
                    remedy=f"Correct the name in the job, or add {name!r} to sources={{...}}.",
                    source=name,
                    declared=sorted(sources),
                )

    @property
    def output_mode(self) -> str:
        """Return the output mode that its class assigns; "": none, or its source does not show it."""
        return assigned_text(_statements(self.parts[-1].text), "output_mode", self.name) if self.parts else ""

    def _entry(self) -> tuple[ast.FunctionDef, int] | None:
        """Return the function that gets the sources, and the place of that parameter; None: the source lacks it."""
        for node in _statements(self.parts[-1].text) if self.parts else ():
            if isinstance(node, ast.FunctionDef) and node.name == self.name:
                return node, 1
            for each in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(each, ast.FunctionDef) and each.name == "transform" and not each.decorator_list:
                    return each, 2
        return None

    def __str__(self) -> str:
        """Return the text that Airflow shows and uses to detect a new version of a DAG."""
        return f"{self.reference} (sha256 {self.sha256[:16]})"

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> InlineJob:
        """The inverse of `to_json`."""
        return cls(**{**data, "parts": tuple(Part(**part) for part in data["parts"])})


def assigned_text(body: Sequence[ast.stmt], name: str, of: str = "") -> str:
    """Return the literal text that these statements assign to `name`; `of`: those of this class. "": none."""
    found = ""
    for node in body:
        if of and isinstance(node, ast.ClassDef) and node.name == of:
            return assigned_text(node.body, name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if not of and any(isinstance(each, ast.Name) and each.id == name for each in targets):
            found = value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
    return found


@lru_cache(64)  # each check looks at them
def _statements(text: str) -> list[ast.stmt]:
    if not text[:1].isspace():
        return ast.parse(text).body
    block = ast.parse(f"if True:\n{text}").body[0]  # it may be inside a `with`
    assert isinstance(block, ast.If)
    return block.body


def _read_at_once(entry: tuple[ast.FunctionDef, int] | None) -> Iterator[str]:
    """Yield the sources that a job (`_entry`) reads before its first branch."""
    if entry is None:
        return
    function, at = entry
    parameters = [*function.args.posonlyargs, *function.args.args]
    if len(parameters) <= at:
        return
    sources = parameters[at].arg
    for statement in function.body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return | ast.Import | ast.ImportFrom):
            return
        nodes = list(ast.walk(statement))
        if any(isinstance(each, ast.IfExp | ast.BoolOp | ast.Lambda | ast.comprehension) for each in nodes):
            return
        for each in nodes:
            if isinstance(each, ast.Name) and each.id == sources and not isinstance(each.ctx, ast.Load):
                return
        for each in nodes:
            owner, key = getattr(each, "value", None), getattr(each, "slice", None)
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "static":
                owner, key = each.func.value, next(iter(each.args), None)
            if isinstance(owner, ast.Name) and owner.id == sources and isinstance(key, ast.Constant):
                yield from (key.value,) if isinstance(key.value, str) else ()


def _returned(text: str) -> list[set[str]]:
    """Return the keys of each dictionary that `split` of a job returns; none if one of them is not written out."""
    nodes = [node for node in _statements(text) if isinstance(node, ast.ClassDef)] if text else []
    splits = [each for node in nodes for each in node.body if getattr(each, "name", "") == "split"]
    found: list[set[str]] = []
    for split in splits:
        if not isinstance(split, ast.FunctionDef) or split.decorator_list:
            return []
        for each in _returns(split.body):
            value = each.value
            if not isinstance(value, ast.Dict):
                return []
            keys = [key.value if isinstance(key, ast.Constant) else None for key in value.keys]
            if not all(isinstance(key, str) for key in keys):
                return []
            found.append({str(key) for key in keys})
    return found


def _returns(body: Sequence[ast.AST]) -> Iterator[ast.Return]:
    """Yield the `return` statements of a function, and none of functions and classes inside it."""
    for node in body:
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _returns(list(ast.iter_child_nodes(node)))


def _taken_by(
    node: ast.stmt | None, definitions: Mapping[str, ast.FunctionDef | ast.ClassDef]
) -> tuple[list[str], list[str], bool] | None:
    """Return what a job needs, what it takes, and whether it takes any name; None: its source does not show it."""
    passed = 2  # spark and sources
    if isinstance(node, ast.ClassDef):
        own = next((each for each in node.body if getattr(each, "name", "") in ("__init__", "__new__")), None)
        if own is None:
            if node.keywords or len(node.bases) > 1:  # a metaclass, or an order of bases
                return None
            if not node.bases or ast.unparse(node.bases[0]) == "object":
                assigned = any(isinstance(each, ast.Assign | ast.If | ast.Try) for each in node.body)
                return None if assigned and "__init__" in ast.unparse(node) else ([], [], False)
            base = node.bases[0]
            return _taken_by(definitions.get(base.id), definitions) if isinstance(base, ast.Name) else None
        node, passed = own, 1  # self
    if not isinstance(node, ast.FunctionDef) or (passed == 1 and node.decorator_list):
        return None
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    first_default = len(positional) - len(given.defaults)
    only_positional = len(given.posonlyargs)
    if any(passed <= at < first_default for at in range(only_positional)):  # the driver says what is wrong with it
        return None
    by_name = [
        (each.arg, at >= first_default) for at, each in enumerate(positional) if at >= max(passed, only_positional)
    ]
    by_name += [(each.arg, has is not None) for each, has in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    needed = [name for name, optional in by_name if not optional]
    return needed, [name for name, optional in by_name if optional], given.kwarg is not None


def declare(definition: Any, job: InlineJob) -> None:
    """Notes at a function or class that it is this job."""
    setattr(definition, _DECLARED, (definition, job))


def declared_job(value: Any) -> Any:
    """The InlineJob that a function or class was declared to be; else the value.

    Itself, and neither its base nor what it wraps (`functools.wraps` copies all attributes).
    """
    declared, job = getattr(value, "__dict__", {}).get(_DECLARED, (None, None))
    return value if job is None or declared is not value else job
