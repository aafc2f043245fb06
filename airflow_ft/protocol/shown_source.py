"""Python source for people: text that is given to a name which sounds like a secret is hidden."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import pairwise

from airflow_ft.protocol.secrets import HIDDEN, SECRET

_BY_NAME = frozenset(
    {
        "add_header", "config", "get", "getenv", "option", "pop", "put", "putenv", "set", "setConf", "setIfMissing",
        "setLocalProperty", "setProperty", "setattr", "setdefault", "set_config",
    }
)  # fmt: skip
"""Functions that take a name, then its value. The arguments of others may be columns: `select("token", "amount")`."""
_KEEPING = frozenset({"SecretBytes", "SecretStr", "bytes", "quote", "quote_plus", "str"})
"""Functions whose argument is the value itself."""


def shown_source(text: str) -> str:
    """Return the source with each such text as '***'. Hide source as a whole that cannot be parsed."""
    first_line = 2 if text[:1].isspace() else 1  # it may be inside a `with`
    try:
        places = {_place(each, first_line) for each in _secrets(ast.parse("if True:\n" * (first_line - 1) + text))}
    except (SyntaxError, ValueError, RecursionError):
        return HIDDEN
    lines = text.encode().splitlines(keepends=True)
    for first, begin, last, end in sorted(places, reverse=True):
        lines[first : last + 1] = [lines[first][:begin] + repr(HIDDEN).encode() + lines[last][end:]]
    return b"".join(lines).decode()


def _place(node: ast.expr, first_line: int) -> tuple[int, int, int, int]:
    """Return the first line and the last one, each with a place in its bytes."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.lineno - first_line, node.col_offset, node.end_lineno - first_line, node.end_col_offset


def _secrets(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the constants to hide, none inside of another one."""
    left = [tree]
    while left:
        node = left.pop()
        for name, value in _named(node):
            if SECRET.search(name):
                yield from _texts(value)
        for each in ast.iter_child_nodes(node):
            if not isinstance(each, ast.JoinedStr):
                left.append(each)
            elif any(True for part in each.values for _ in _secrets(part)):  # the places in it are not reliable
                yield each


def _named(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield each value in a node that has a name there, with that name."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _assigned(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        yield _name(node.target), node.value
    elif isinstance(node, ast.keyword):
        yield node.arg or "", node.value
    elif isinstance(node, ast.Dict):
        yield from ((_name(key), value) for key, value in zip(node.keys, node.values, strict=True))
    elif isinstance(node, ast.Call):
        by_keyword = {each.arg: each.value for each in node.keywords}
        if _name(node.func) in _BY_NAME:
            yield from _after(node.args)
        if "value" in by_keyword:
            yield (
                _name(by_keyword.get("key") or by_keyword.get("name") or next(iter(node.args), None)),
                by_keyword["value"],
            )
    elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
        yield from _after(node.elts)
    elif isinstance(node, ast.arguments):
        positional = [*node.posonlyargs, *node.args]
        yield from zip((each.arg for each in positional[-len(node.defaults) :]), node.defaults, strict=False)
        by_name = zip(node.kwonlyargs, node.kw_defaults, strict=True)
        yield from ((each.arg, default) for each, default in by_name if default is not None)


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the values that a target gets: `user, password = "ada", "..."` has two."""
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        for one, its_value in zip(target.elts, value.elts, strict=False):
            yield from _assigned(one, its_value)
    else:
        yield _name(target), value


def _after(values: Sequence[ast.expr]) -> Iterator[tuple[str, ast.expr]]:
    """Yield each value with the text before it: `option("password", "...")`."""
    yield from ((_name(before), value) for before, value in pairwise(values))


def _name(node: ast.expr | None) -> str:
    """Return how a target, a key or a text is called, by the constants of a computed one; "": it has no name."""
    if isinstance(node, ast.JoinedStr | ast.BinOp):
        return "".join(_name(each) for each in ast.walk(node) if isinstance(each, ast.Constant))
    if isinstance(node, ast.Subscript):
        return _name(node.slice)
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return str(getattr(node, "id", getattr(node, "attr", "")))


def _texts(value: ast.expr) -> Iterator[ast.expr]:
    """Yield the texts that a value is made of; in most calls they may be names: `Variable.get("token")`."""
    if isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str | bytes)):
        yield value
    elif isinstance(value, ast.BinOp | ast.BoolOp | ast.IfExp | ast.Dict | ast.Tuple | ast.List | ast.Set):
        for each in value.values if isinstance(value, ast.Dict) else ast.iter_child_nodes(value):
            if isinstance(each, ast.expr):
                yield from _texts(each)
    elif isinstance(value, ast.Call):
        given = value.args if _name(value.func) in _KEEPING else []
        for each in [*given, *([value.func.value] if isinstance(value.func, ast.Attribute) else [])]:
            yield from _texts(each)  # also of "...".encode()
