"""A job that is written in a DAG file: what of the file is taken along, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_ft import FileSource, SqliteSink, job
from airflow_ft.pipeline.spec import PipelineSpec
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.inline_job import MOST_BYTES, InlineJob, declared_job
from tests.jobs.dag_files import HEAD, imported, job_of
from tests.raising import raises

PLAIN = "@ft.job\ndef transform(spark, sources):\n    return sources['orders']\n"
CLASS = "@ft.job\nclass Orders:\n    def transform(self, spark, sources):\n        return 1\n"
DECLARED: dict[str, Any] = {
    "pipeline": "orders",
    "sources": {"orders": FileSource(path="/data", schema="id bigint")},
    "sinks": {"orders": SqliteSink(table="orders")},
}


def _job(folder: Path, body: str, *, above: str = "", below: str = "") -> InlineJob:
    """Of a function whose body is this line."""
    return job_of(folder / "orders.py", f"{above}\n@ft.job\ndef transform(spark, sources):\n    {body}\n{below}")


def test_a_function_is_taken_verbatim_without_its_decorator(tmp_path: Path) -> None:
    found = job_of(tmp_path / "orders.py", f"DAG = object()\n{PLAIN}# the end\n")
    assert found.source == "def transform(spark, sources):\n    return sources['orders']"
    assert (found.reference, found.parts[-1].line) == ("orders.py:transform", 4)
    assert InlineJob.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_it_can_be_called_as_before(tmp_path: Path) -> None:
    assert imported(tmp_path / "orders.py", HEAD + PLAIN).transform(None, {"orders": 5}) == 5


@pytest.mark.parametrize(
    ("above", "body", "taken"),
    [
        ("import json, os\n", "return json.dumps(1)", ["import json"]),
        ("import os.path as p, os\n", "return p.join('a')", ["import os.path as p"]),
        ("import xml.dom\nimport xml.sax\n", "return xml.dom", ["import xml.dom", "import xml.sax"]),
        ("from math import pi as P, tau\n", "return P", ["from math import pi as P"]),
        ("LIMIT = 60 * 60; REST = 1\n", "return LIMIT", ["LIMIT = 60 * 60"]),
        ("LIMIT: int = 5\n", "return LIMIT", ["LIMIT = 5"]),
        (
            "A = [1, -2]\nB = {'a': A, 'b': (None, 'x')}\n",
            "return B",
            ["A = [1, -2]", "B = {'a': A, 'b': (None, 'x')}"],
        ),
        ("A = 'x'\nSQL = f'''\n select {A}\n'''\n", "return SQL", ["A = 'x'", "SQL = f'''\n select {A}\n'''"]),
        ("def a():\n    return b()\n\ndef b():\n    return a()\n", "return a()", ["a():", "b():"]),
        ("class Base:\n    pass\n\nclass Kept(Base):\n    pass\n", "return Kept()", ["class Base", "class Kept(Base)"]),
        ("import contextlib\nwith contextlib.suppress(ValueError):\n    LIMIT = 1\n", "return LIMIT", ["LIMIT = 1"]),
        ("", "return max(len(__name__), len(__file__))", []),
        ("", "return [n for n in (lambda m: m)(sources) if n]", []),
        ("", "import json; return json.dumps({k: v for k, v in sources})", []),
    ],
)
def test_with_it_goes_what_it_names_and_nothing_else(tmp_path: Path, above: str, body: str, taken: list[str]) -> None:
    found = _job(tmp_path, body, above=above)
    assert len(found.parts) == len(taken) + 1
    for part, text in zip(found.parts, taken, strict=False):
        assert text in part.text and (tmp_path / "orders.py").read_text().splitlines()[part.line - 1]


def test_names_in_defaults_bases_and_later_code_are_taken_too(tmp_path: Path) -> None:
    text = (
        "from collections import UserDict\nMOST = 5\n@ft.job\nclass Orders(UserDict):\n"
        "    def transform(self, spark, sources, most=MOST):\n        return later()\n"
        "def later():\n    return UNTIL\nUNTIL = 7\n"
    )
    found = job_of(tmp_path / "orders.py", text, "Orders")
    assert [part.text.splitlines()[0] for part in found.parts] == [
        "from collections import UserDict",
        "MOST = 5",
        "def later():",
        "UNTIL = 7",
        "class Orders(UserDict):",
    ]


def test_types_for_checkers_alone_are_no_hindrance(tmp_path: Path) -> None:
    text = (
        "from __future__ import annotations\nfrom collections.abc import Mapping\nfrom typing import TYPE_CHECKING\n"
        "import airflow_ft as ft\nif TYPE_CHECKING:\n    from pyspark.sql import DataFrame\n"
        "@ft.job\ndef transform(spark: DataFrame, sources: Mapping[str, DataFrame]) -> DataFrame:\n"
        "    def inner(frame: DataFrame) -> int:\n        kept: DataFrame = frame\n        return kept\n"
        "    return inner(spark)\n"
    )
    found = declared_job(imported(tmp_path / "orders.py", text).transform)
    assert found.postponed and [part.text for part in found.parts[:-1]] == ["from collections.abc import Mapping"]


@pytest.mark.parametrize(
    ("above", "body", "name", "defined"),
    [
        ("import datetime\nDAY = datetime.date(2024, 1, 1)\n", "return DAY", "DAY", 3),
        ("NAMES = []\nNAMES.append(1)\n", "return NAMES", "NAMES", 2),
        ("LIMIT = 1\nLIMIT = 2\n", "return LIMIT", "LIMIT", 3),
        ("LIMIT = 1\nLIMIT += 2\n", "return LIMIT", "LIMIT", 3),
        ("for name in (1,):\n    name = 2\n", "return name", "name", 2),
        ("try:\n    import json\nexcept ImportError:\n    pass\n", "return json", "json", 2),
        ("double = lambda n: n * 2\n", "return double(1)", "double", 2),
        ("async def wait():\n    pass\n", "return wait()", "wait", 2),
        ("import functools\n@functools.cache\ndef a():\n    pass\n", "return a()", "a", 4),
        ("def a():\n    return MISSING\n", "return a()", "MISSING", 0),
        ("", "return DAG_FOLDER", "DAG_FOLDER", 0),
        ("from math import *\n", "return pi", "pi", 0),
        ("if 0:\n    import json\n", "return json", "json", 2),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import json\n", "return json", "json", 0),
        ("A = [1]\nB = A + [2]\nfor x in (3,):\n    B.append(x)\n", "return B", "B", 3),
        ("A = {'small': 10 * 1000}\nA['small'] = 5\n", "return A", "A", 2),
        ("A = [1, 2]\nother = A\nother[0] = True\n", "return A", "A", 2),
        ("A = {'x': 1, 'y': 2}\nother = A\nother['x'] = other.pop('x')\n", "return A", "A", 2),
        ("A = ['x']\ndef change():\n    global A\n    A = ['y']\nchange()\n", "return A", "A", 2),
        ("from string import digits as D\nA = [D]\nother = A\nother.clear()\n", "return A", "A", 3),
        ("class A:\n    most = 1\nA.most = 2\n", "return A.most", "A", 2),
        ("from math import *\n", "return pow(2, 2)", "pow", 0),
    ],
)
def test_a_name_that_the_driver_cannot_have_is_refused(
    tmp_path: Path, above: str, body: str, name: str, defined: int
) -> None:
    path = str(tmp_path / "orders.py")
    where = {"job": "transform", "path": path, "name": name, "defined": defined}
    with raises(ConfigurationError, "job_not_portable", **where) as caught:
        _job(tmp_path, body, above=above)
    assert caught.error and "job_args" in caught.error.remedy and 'job="jobs.orders"' in caught.error.remedy
    assert name in caught.error.what and path in caught.error.what


@pytest.mark.parametrize(
    "below",
    [
        "A['c'] = 1",
        "A['a']['c'] = 1",
        "A['a'] += 1",
        "del A['a']",
        "A.update(c=1)",
        "A['b'].append(1)",
        "B.update(c=1)",
        "for x in (1, 2):\n    if x:\n        A[x] = 1",
        "with open(__file__):\n    A.clear()",
        "class Other:\n    A['c'] = 1",
        "[A.pop(x) for x in ('a',)]",
    ],
)
def test_a_constant_that_is_changed_below_the_job_is_refused(tmp_path: Path, below: str) -> None:
    above = "A = B = {'a': {}, 'b': []}\n"
    with raises(ConfigurationError, "job_not_portable", name="A", defined=2):
        _job(tmp_path, "return A", above=above, below=f"\n\nif '':\n    {below.replace(chr(10), chr(10) + '    ')}\n")


def test_a_job_class_that_is_changed_below_is_refused(tmp_path: Path) -> None:
    text = "class Orders:\n    RATES = {}\n    def transform(self, spark, sources):\n        return self.RATES\n"
    with raises(ConfigurationError, "job_not_portable", name="Orders"):
        job_of(tmp_path / "orders.py", f"@ft.job\n{text}Orders.RATES['USD'] = 1\n", "Orders")


def test_the_name_of_a_job_may_be_given_to_its_pipeline(tmp_path: Path) -> None:
    below = "class Pipeline:\n    pass\nJOB, transform = transform, Pipeline()\ntransform.doc_md = 'text'\n"
    text = f"@ft.job\ndef transform(spark, sources):\n    return 1\n{below}"
    assert job_of(tmp_path / "orders.py", text, "JOB").name == "transform"


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("A = {'a': 1}", "for name, rate in A.items():\n    print(name, A['a'], A.get(name))"),
        ("A = {'a': 1}", "def cached(key):\n    A[key] = 1"),
        ("A = 'x'\nKNOWN = {}", "KNOWN[A] = A.upper()\nKNOWN.update(a=A)"),
        ("A = len", "OTHER = [A('')]"),
        ("from math import pi as P\nA = {'a': [P, -P, (1.5, None)], 'b': {P}}", ""),
        ("import fractions\nfrom fractions import Fraction as F\nA = [F, [F]]", ""),
        ("def f():\n    pass\nA = [f]", ""),
        ("from string import digits as D, octdigits as O\nA = D", "O[0:0].pop() if 0 else 1"),
        ("LATER = 1\nA = 'a%s' % (LATER,)", ""),
        ("from math import pow\nA = 1\ndef f():\n    return pow(2, 2)", ""),
    ],
)
def test_a_constant_that_is_only_read_goes_along(tmp_path: Path, above: str, below: str) -> None:
    assert any(part.text.startswith("A = ") for part in _job(tmp_path, "return A", above=above, below=below).parts)


def test_an_imported_name_goes_before_a_builtin(tmp_path: Path) -> None:
    found = _job(tmp_path, "return pow(max(1, 2), 2)", above="from math import *\nfrom math import pow\n")
    assert [part.text for part in found.parts[:-1]] == ["from math import pow"]


@pytest.mark.parametrize(
    ("text", "code", "fields"),
    [
        ("transform = ft.job(lambda spark, sources: sources)", "job_invalid", {"job": "<lambda>"}),
        ("@ft.job\nasync def transform(spark, sources):\n    pass", "job_invalid", {"job": "transform"}),
        (
            "class A:\n    @ft.job\n    def transform(self, spark, sources):\n        pass",
            "job_invalid",
            {"job": "transform"},
        ),
        ("ft.job(5)", "job_invalid", {"job": ""}),
        (
            "import functools\n@ft.job\n@functools.cache\ndef transform(spark, sources):\n    pass",
            "job_invalid",
            {"job": "transform"},
        ),
        (
            "def as_it_is(f):\n    return f\n@as_it_is\n@ft.job\ndef transform(spark, sources):\n    pass",
            "job_invalid",
            {"decorator": "as_it_is", "line": 4},
        ),
        (
            "exec('@ft.job\\ndef transform(spark, sources): pass')",
            "job_source_missing",
            {"job": "transform", "path": "<string>"},
        ),
        (
            "def make(table):\n    @ft.job\n    def transform(spark, sources):\n        return table\nmake('a')",
            "job_not_portable",
            {"names": ["table"], "line": 5},
        ),
        (
            "def make(table):\n    @ft.job\n    class A:\n        def transform(self, spark, sources, to=table):\n"
            "            return 1\nmake('a')",
            "job_not_portable",
            {"names": ["table"]},
        ),
        ("@ft.job\ndef transform(spark):\n    pass", "job_invalid", {"job": "transform"}),
        ("@ft.job\ndef transform(spark, *, sources):\n    pass", "job_invalid", {"job": "transform"}),
        (
            "import functools\ndef timed(f):\n    return functools.wraps(f)(lambda *given: f(*given))\n"
            "@ft.job\n@timed\ndef transform(spark, sources):\n    pass",
            "job_invalid",
            {"job": "transform"},
        ),
        ("@ft.job\nclass A:\n    def tranform(self, spark, sources):\n        pass", "job_invalid", {"job": "A"}),
        ("@ft.job\nclass A:\n    def transform(spark, sources):\n        pass", "job_invalid", {"job": "A"}),
        (
            "@ft.job\nclass A:\n    def transform(self, spark, sources, *, large):\n        pass",
            "job_invalid",
            {"job": "A"},
        ),
    ],
)
def test_what_is_no_job_is_refused(tmp_path: Path, text: str, code: str, fields: dict[str, Any]) -> None:
    with raises(ConfigurationError, code, **fields) as caught:
        imported(tmp_path / "orders.py", f"{HEAD}{text}\n")
    assert caught.error and caught.error.remedy


@pytest.mark.parametrize(
    "text",
    [
        "def transform(self, *given):\n        return 1",
        "def transform(self, spark, sources, *, large=1):\n        return 1",
        "@staticmethod\n    def transform(spark, sources):\n        return 1",
        "@classmethod\n    def transform(cls, spark, sources):\n        return 1",
        "def __init__(self):\n        self.transform = print",
    ],
)
def test_whatever_can_be_called_with_two_arguments_is_a_job(tmp_path: Path, text: str) -> None:
    assert job_of(tmp_path / "orders.py", f"@ft.job\nclass Orders:\n    {text}\n", "Orders").divides is False


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        (PLAIN, True),
        (CLASS, True),
        (f"{CLASS}    def split(self, batch):\n        return {{'orders': batch, 'refunds': batch}}\n", False),
        (f"{CLASS}    def __init__(self):\n        self.split = print\n", False),
        (f"class Base:\n    def split(self, batch):\n        pass\n{CLASS.replace('Orders:', 'Orders(Base):')}", False),
    ],
)
def test_a_job_with_several_sinks_is_refused_without_a_split(tmp_path: Path, text: str, is_refused: bool) -> None:
    found = job_of(tmp_path / "orders.py", text, "transform" if text == PLAIN else "Orders")
    several = {**DECLARED, "job": found, "sinks": {name: SqliteSink(table=name) for name in ("orders", "refunds")}}
    if is_refused:
        PipelineSpec(**{**DECLARED, "job": found})
    PipelineSpec(**several, dead_letters="refunds")
    if is_refused:
        with pytest.raises(ConfigurationError) as caught:
            PipelineSpec(**several)
        assert caught.value.pipeline == "orders" and "orders, refunds" in caught.value.what
        assert "split(self, batch)" in caught.value.remedy
    else:
        PipelineSpec(**several)


def test_a_closure_variable_is_not_confused_with_a_global_name(tmp_path: Path) -> None:
    text = (
        "import os as table\ndef make(table):\n    @ft.job\n    def transform(spark, sources):\n        return table\n"
        "    return transform\n"
    )
    with raises(ConfigurationError, "job_not_portable", names=["table"]):
        imported(tmp_path / "orders.py", f"{HEAD}{text}make('a')\n")


def test_a_job_may_stand_in_a_function_that_makes_the_dag(tmp_path: Path) -> None:
    text = (
        "def dag():\n    @ft.job\n    def transform(spark, sources):\n        return '''\nx'''\n    return transform\n"
    )
    made = imported(tmp_path / "orders.py", f"{HEAD}{text}")
    found = declared_job(made.dag())
    assert found.parts[-1].text == "    def transform(spark, sources):\n        return '''\nx'''"


def test_two_jobs_of_one_name_are_two_jobs(tmp_path: Path) -> None:
    text = f"{PLAIN}first = transform\n@ft.job\ndef transform(spark, sources):\n    return 2\n"
    made = imported(tmp_path / "orders.py", f"{HEAD}{text}")
    one, other = declared_job(made.first), declared_job(made.transform)
    assert "orders" in one.source and "return 2" in other.source and one.sha256 != other.sha256


def test_where_it_stands_changes_nothing_and_what_it_says_does(tmp_path: Path) -> None:
    file = tmp_path / "orders.py"
    one = job_of(file, PLAIN)
    moved = job_of(file, f"# moved\n\n{PLAIN}")
    assert one.sha256 == moved.sha256 and one.parts[-1].line + 2 == moved.parts[-1].line
    assert job_of(file, PLAIN.replace("orders", "others")).sha256 != one.sha256
    helped = "def helper():\n    return {}\n@ft.job\ndef transform(spark, sources):\n    return helper()\n"
    assert job_of(file, helped.format(1)).sha256 != job_of(file, helped.format(2)).sha256


def test_a_file_that_changed_after_its_import_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "orders.py"
    text = f"{HEAD}import pathlib\npathlib.Path(__file__).write_text('\\n' * 20)\n{PLAIN}"
    with raises(ConfigurationError, "job_source_missing", path=str(file), line=4):
        imported(file, text)


def test_more_source_than_is_kept_is_refused(tmp_path: Path) -> None:
    text = f"TEXT = '{'x' * MOST_BYTES}'\n@ft.job\ndef transform(spark, sources):\n    return TEXT\n"
    with pytest.raises(ConfigurationError) as caught:
        job_of(tmp_path / "orders.py", text)
    assert "orders.py:transform" in caught.value.what and "262,144" in caught.value.what


def test_a_subclass_is_a_job_when_it_says_so_itself(tmp_path: Path) -> None:
    made = imported(tmp_path / "orders.py", f"{HEAD}{CLASS}class B(Orders):\n    pass\n")
    assert isinstance(declared_job(made.Orders), InlineJob) and declared_job(made.B) is made.B
    with pytest.raises(ConfigurationError) as caught:
        PipelineSpec(job=made.B, **DECLARED)
    assert "@airflow_ft.job" in caught.value.remedy


def test_what_wraps_a_job_is_none(tmp_path: Path) -> None:
    text = f"import functools\n{PLAIN}@functools.wraps(transform)\ndef other(spark, sources):\n    pass\n"
    made = imported(tmp_path / "orders.py", f"{HEAD}{text}")
    with pytest.raises(ConfigurationError) as caught:
        PipelineSpec(job=made.other, **DECLARED)
    assert "@airflow_ft.job" in caught.value.remedy


def test_a_specification_shows_job_source_without_its_secrets(tmp_path: Path) -> None:
    text = (
        "DB_PASSWORD = 'planted-1'\n@ft.job\ndef transform(spark, sources):\n"
        "    given = {'api_key': 'planted-2', 'key': '{{ ds }}'}\n"
        '    return DB_PASSWORD, dict(token="planted-3"), given  # or pwd="planted-4"\n'
    )
    made = imported(tmp_path / "orders.py", f"{HEAD}{text}")
    spec = PipelineSpec(job=made.transform, **DECLARED)
    assert spec.plain("job") is spec.job and spec.rendered({"job": spec.plain("job")}) == spec
    kept = spec.to_json()
    assert kept["job"] == "orders.py:transform" and kept["job_sha256"] == declared_job(made.transform).sha256
    assert "planted" not in json.dumps(kept) and "'{{ ds }}'" in kept["job_source"]
    assert str(tmp_path) not in json.dumps(kept) + str(spec.job) + repr(spec)


def test_what_a_module_has_is_not_kept_twice() -> None:
    assert "job_source" not in PipelineSpec(job="jobs.orders", **DECLARED).to_json()


@job
def of_this_file(spark: object, sources: dict[str, Path]) -> Path:
    return sources["orders"]


def test_a_job_of_a_module_is_one_as_well() -> None:
    assert declared_job(of_this_file).reference == "test_taking.py:of_this_file"


INIT = CLASS.replace("    def", "    def __init__(self, {}):\n        pass\n\n    def")
BASE = "class Base:\n    def __init__(self, limit):\n        pass\n\n" + CLASS.replace("Orders", "Orders(Base)")


def _function(arguments: str) -> str:
    return f"@ft.job\ndef transform({arguments}):\n    return 1\n"


@pytest.mark.parametrize(
    ("text", "given", "named"),
    [
        (_function("spark, sources"), {}, ()),
        (_function("spark, sources"), {"limit": 1}, ("limit",)),
        (_function("spark, sources, limit"), {"limit": 1}, ()),
        (_function("spark, sources, limit: 'int' = 5"), {}, ()),
        (_function("spark, sources, *, limit"), {}, ("limit",)),
        (_function("spark, sources, limit, *, more=1"), {"limt": 1}, ("limt", "limit")),
        (_function("spark, sources, **others"), {"limit": 1}, ()),
        (_function("*all, limit"), {"limit": 1}, ()),
        (_function("spark, sources, limit=1"), {"spark": 1}, ("spark",)),
        (_function("spark, sources, limit=1, /"), {"limit": 1}, ("limit",)),
        (INIT.format("limit"), {}, ("limit",)),
        (INIT.format("limit=1"), {"spark": 1}, ("spark",)),
        (INIT.format("*, limit"), {"limit": "{{ params.limit }}"}, ()),
        (CLASS, {"limit": 1}, ("limit",)),
        (BASE, {}, ("limit",)),
        (BASE, {"limit": 1}, ()),
        ("from collections import UserDict\n" + BASE.replace("(Base)", "(UserDict)"), {"limit": 1}, ()),
        (f"if True:\n    {_function('spark, sources').replace(chr(10), chr(10) + '    ')}", {"limit": 1}, ("limit",)),
    ],
)
def test_job_args_are_compared_with_what_the_job_takes(
    tmp_path: Path, text: str, given: dict[str, Any], named: tuple[str, ...]
) -> None:
    name = "Orders" if "Orders" in text else "transform"
    job = getattr(imported(tmp_path / "orders.py", HEAD + text), name)
    if not named:
        PipelineSpec(**DECLARED, job=job, job_args=given)
        return
    with pytest.raises(ConfigurationError) as caught:
        PipelineSpec(**DECLARED, job=job, job_args=given)
    assert "job_args" in caught.value.remedy and caught.value.pipeline == "orders"
    assert all(name in caught.value.what for name in named)


SPLIT = f"{CLASS}    def split(self, batch):\n        "


@pytest.mark.parametrize(
    ("body", "missing", "unknown"),
    [
        ("return {'orders': batch}", ["refunds"], []),
        ("return {'orders': batch, 'refunds': batch, 'refund': batch}", [], ["refund"]),
        ("if batch:\n            return {'order': batch}\n        return {}", ["orders", "refunds"], ["order"]),
        (
            "try:\n            pass\n        except ValueError:\n            return {}\n        return {}",
            ["orders", "refunds"],
            [],
        ),
    ],
)
def test_names_that_a_split_returns_are_compared_with_the_sinks(
    tmp_path: Path, body: str, missing: list[str], unknown: list[str]
) -> None:
    with raises(ConfigurationError, "split_unfit", missing=missing, unknown=unknown):
        _declare(tmp_path, f"{SPLIT}{body}\n")


@pytest.mark.parametrize(
    "body",
    [
        "return {'orders': batch, 'refunds': batch, 'rejected': batch}",
        "return {'orders': batch, 'refunds': batch}",
        "found = {'orders': batch}\n        return found",
        "return {name: batch for name in ('a', 'b')}",
        "return {**batch, 'a': batch}",
        "def inner():\n            return {'a': batch}\n        return {'orders': batch, 'refunds': batch}",
    ],
)
def test_other_splits_are_left_to_the_driver(tmp_path: Path, body: str) -> None:
    _declare(tmp_path, f"{SPLIT}{body}\n")


def _declare(folder: Path, text: str) -> None:
    sinks = {name: SqliteSink(table=name) for name in ("orders", "refunds", "rejected")}
    PipelineSpec(
        **{**DECLARED, "job": job_of(folder / "orders.py", text, "Orders"), "sinks": sinks}, dead_letters="rejected"
    )


PLAIN_JOB = "@ft.job\ndef transform(spark, sources):\n    "
CLASS_JOB = "@ft.job\nclass transform:\n    def transform(self, spark, found):\n        "


@pytest.mark.parametrize(
    "text",
    [
        f"{PLAIN_JOB}return sources['refunds'].where('amount > 0')",
        f"{PLAIN_JOB}both = sources['orders'].join(sources.static('refunds'), 'id')\n    return both",
        f"{CLASS_JOB}return found['refunds']",
    ],
)
def test_a_source_that_is_not_declared_is_refused(tmp_path: Path, text: str) -> None:
    job = imported(tmp_path / "orders.py", f"{HEAD}{text}\n").transform
    with raises(ConfigurationError, "source_unknown", source="refunds", declared=["orders"], pipeline="orders"):
        PipelineSpec(**{**DECLARED, "job": job})


@pytest.mark.parametrize(
    "text",
    [
        f"{PLAIN_JOB}return sources['orders']",
        f"{PLAIN_JOB}return sources['refunds'] if 'refunds' in sources else sources['orders']",
        f"{PLAIN_JOB}if 'refunds' not in sources:\n        return sources['orders']\n    return sources['refunds']",
        f"{PLAIN_JOB}sources = {{'refunds': 1}}\n    return sources['refunds']",
        f"{PLAIN_JOB}return spark['refunds']",
        f"{PLAIN_JOB}return [sources[name] for name in ('refunds',)]",
        f"{CLASS_JOB}return spark['refunds']",
    ],
)
def test_other_reads_of_sources_are_left_to_the_driver(tmp_path: Path, text: str) -> None:
    job = imported(tmp_path / "orders.py", f"{HEAD}{text}\n").transform
    PipelineSpec(**{**DECLARED, "job": job})
