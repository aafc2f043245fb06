"""Reading JSON and fields of CSV exactly, inside Spark's JVM: `Exact.java`, compiled once for each Spark application.

Spark's own readers wrap around (200 as tinyint is -56), round (2.555 as decimal(12,2)), guess (12:30 is today) and
skip unreadable values. The function that `reader` returns accepts a value only if it is exact. The classes go to the
executors in a jar, which the driver serves.
"""

from __future__ import annotations

import hashlib
import json
import threading
import zipfile
from collections.abc import Callable, Mapping
from importlib.resources import files as resources
from typing import TYPE_CHECKING, Any, Literal, cast

from airflow_ft.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

NAME, NAME_OF_FILES = "airflow_ft_exact", "airflow_ft_exact_file"
"""Names of the function in plans; by the second one lineage knows columns that are fields of a file's records."""
_LOCK = threading.Lock()

Form = Literal["value", "records", "lines", "fields"]
Reader = Callable[["Column", "Column"], "Column"]
"""(what is read, where it lies) -> struct<reason: string, row: struct>, or an array of these."""


def reader(
    spark: SparkSession, schema: StructType, form: Form, *, zone: str = "", options: Mapping[str, str] | None = None
) -> Reader:
    """Return a function that reads records of this schema; it is evaluated once a row.

    Args:
        spark: the session in which it is used.
        schema: the columns. char(n) and varchar(n) bound the length of a string, and become strings.
        form: "value": a binary column with one JSON object. "records": one with no JSON object, one, or an array of
            them. The result is an array. "lines": one with a line of CSV. The result is an array, empty for a header.
            "fields": a struct of strings, as Spark's reader of CSV finds them.
        zone: the time zone of timestamps that are written without one. "": the session's.
        options: names in lower case. "fail": raise an error in place of a reason. "encoding": of "records" and "lines".
            The others are those of Spark's readers: dateformat, timestampformat, timestampntzformat, nanvalue,
            positiveinf, negativeinf; of "lines" also "separator", "casesensitive", header, quote, escape and the like.

    Raises:
        ConfigurationError: for a type that text cannot hold exactly, or a pattern that is none.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.sql import Column

    context: Any = spark.sparkContext
    jvm: Any = spark._jvm
    of_json = getattr(jvm, "org.apache.spark.sql.types.DataType").fromJson
    found = _loaded(spark)
    local = zone or spark.conf.get("spark.sql.session.timeZone")
    try:
        zone_id = getattr(jvm, "org.apache.spark.sql.catalyst.util.DateTimeUtils").getZoneId(local)
        arguments = context._gateway.new_array(getattr(jvm, "java.lang.Object"), 4)
        arguments[0], arguments[1], arguments[2] = of_json(schema.json()), form, zone_id
        arguments[3] = getattr(jvm, "java.util.HashMap")(dict(options or {}))
        function = found.getConstructors()[0].newInstance(arguments)
    except Py4JJavaError as error:
        cause = error.java_exception
        cause = cause.getCause() or cause
        raise ConfigurationError(
            f"the source's schema or an option cannot be read exactly: {cause.getMessage()}.",
            code="source_schema_invalid",
            remedy="Declare another type, such as string, and convert it in the job. Options such as dateFormat are"
            " patterns of Spark, and timeZone is a name such as Europe/Paris.",
            reason=str(cause.getMessage()),
        ) from None
    result: dict[str, Any] = {
        "type": "struct",
        "fields": [_field("reason", "string"), _field("row", _plain(schema.jsonValue()))],
    }
    if form in ("records", "lines"):
        result = {"type": "array", "elementType": result, "containsNull": True}
    made = (
        function.function(of_json(json.dumps(result)))
        .withName(NAME if form == "value" else NAME_OF_FILES)
        .asNondeterministic()
    )
    # Otherwise Spark evaluates it again for each use of its result.

    def read(what: Column, place: Column) -> Column:
        columns = context._gateway.new_array(getattr(jvm, "org.apache.spark.sql.Column"), 2)
        columns[0], columns[1] = cast("Any", what)._jc, cast("Any", place)._jc
        return Column(made.apply(columns))

    return read


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _plain(kind: Any) -> Any:
    """A type as JSON, with nullable fields, and strings in place of char and varchar."""
    if isinstance(kind, str):
        return "string" if kind.startswith(("char(", "varchar(")) else kind
    found = dict(kind)
    if found["type"] == "struct":
        found["fields"] = [{**each, "type": _plain(each["type"]), "nullable": True} for each in found["fields"]]
    elif found["type"] == "array":
        found |= {"elementType": _plain(found["elementType"]), "containsNull": True}
    elif found["type"] == "map":
        found |= {"keyType": _plain(found["keyType"]), "valueType": _plain(found["valueType"])}
        found["valueContainsNull"] = True
    return found


def _loaded(spark: SparkSession) -> Any:
    """The class in the JVM; its jar is known to the executors of this application."""
    context: Any = spark.sparkContext
    jvm: Any = spark._jvm
    text = (resources("airflow_ft.jobs.exact") / "Exact.java").read_text(encoding="utf-8")
    known = getattr(jvm, "java.lang.System").getProperties()
    key = f"airflow_ft.exact.{hashlib.sha256(text.encode()).hexdigest()}.{context.applicationId}"
    with _LOCK:  # the JVM may be that of a kept session, in which an earlier driver has compiled it
        found = known.get(key)
        if found is None:
            found = _compiled(context, jvm, text)
            known.put(key, found)
    return found


def _compiled(context: Any, jvm: Any, text: str) -> Any:
    compiler = getattr(jvm, "org.codehaus.janino.SimpleCompiler")()
    compiler.setParentClassLoader(getattr(jvm, "java.lang.Thread").currentThread().getContextClassLoader())
    compiler.cook("Exact.java", getattr(jvm, "java.io.StringReader")(text))
    folder = getattr(jvm, "org.apache.spark.util.Utils").createTempDir(
        getattr(jvm, "java.lang.System").getProperty("java.io.tmpdir"), "airflow-ft"
    )  # which goes with the JVM
    path = f"{folder.getAbsolutePath()}/airflow-ft-exact-{context.applicationId}.jar"
    with zipfile.ZipFile(path, "w") as jar:
        for name, code in compiler.getBytecodes().items():
            jar.writestr(f"{name.replace('.', '/')}.class", bytes(code))
    context._jsc.addJar(path)
    return compiler.getClassLoader().loadClass("airflow_ft.Exact")
