"""Check arguments where they are written: the error names the argument, its value, and what is allowed.

Fields of these errors: `argument`, `value` (as `shown` writes it), and `of`, the object that has the argument.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from inspect import isclass, isroutine
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.inline_job import InlineJob

PLACES = ("/", "file:/", "hdfs://", "s3://")
"""How absolute paths and URIs of folders begin."""
_JOB = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)?")
_OBJECT = re.compile(
    r"\b(?:MappedArgument|DictOfListsExpandInput|ListOfDictsExpandInput)\(|\bXComArg\(<|<(?:Mapped|Task)\("
    r"|<airflow\.\S+ object at 0x"
)
"""The look of Airflow objects that have their values only in a run. The output of a task formats as Jinja."""
_OF_A_DAG = "unusual_prefix_"
"""The begin of the name that Airflow gives to the module of a DAG file."""
_LONGEST = 60
_LONGEST_BARRIER = 250
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False, "none": False}


def kind_of(value: object) -> str:
    """The type of a value with its article: "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def shown(value: object) -> str:
    """A value in a message: short, and of containers the kind alone, since they may hold secrets."""
    if isclass(value):
        return f"the class {value.__name__}"
    if isroutine(value):
        return f"the function {value.__name__}"
    if isinstance(value, Mapping | set | frozenset | list | tuple):
        return kind_of(value)
    text = repr(value)
    if isinstance(value, str | int | float | bool) or value is None:
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return kind_of(value) + (f" ({text})" if len(text) <= _LONGEST and " at 0x" not in text else "")


def wrong(
    argument: str,
    value: str,
    remedy: str,
    *,
    code: str = "argument_invalid",
    of: str = "",
    why: str = "",
    what: str = "",
) -> ConfigurationError:
    """Return the error for an argument with a value that cannot work.

    Args:
        argument: its name.
        value: the value as `shown` writes it.
        remedy: what to give instead.
        code: the code of the error.
        of: the object that has the argument, such as "sink 'orders'".
        why: more about the value, which follows it: ", which ...".
        what: a sentence to use instead of "ARGUMENT is VALUE".
    """
    place = f"{of}: " if of else ""
    text = what or f"{argument} is {value}{why}."
    return ConfigurationError(f"{place}{text}", code=code, remedy=remedy, argument=argument, value=value, of=of)


def is_template(value: object) -> bool:
    """Return whether only a run knows a value: text with Jinja, an argument of a mapped group, a task's output."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    return is_resolved_later(value)


def check_type(
    argument: str, value: object, kinds: type | tuple[type, ...], remedy: str, *, optional: bool = False, of: str = ""
) -> None:
    """ConfigurationError unless `value` is of one of the kinds, or None where it is optional. True is no number."""
    if value is None and optional:
        return
    if isinstance(value, str):
        refuse_object(argument, value, of=of)
    wanted = kinds if isinstance(kinds, tuple) else (kinds,)
    if isinstance(value, wanted) and (not isinstance(value, bool) or bool in wanted):
        return
    raise wrong(argument, shown(value), remedy, of=of)


def check_text(argument: str, value: object, *, optional: bool = False, of: str = "") -> None:
    """A piece of text; or what Airflow makes one of when the task runs (a task's output)."""
    if not is_resolved_later(value):
        check_type(argument, value, str, f"Give text as {argument}.", optional=optional, of=of)


def is_resolved_later(value: object) -> bool:
    """Return whether its value is known in a run only, as that of Airflow's XComArg."""
    return hasattr(value, "iter_references") and hasattr(value, "resolve") and not isclass(value)


def late_text(value: object) -> str:
    """Return what only a run knows in a value: it, or the first such item of a dictionary or list; "": nothing."""
    if is_template(value):
        return str(value)
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return next((found for item in items if (found := late_text(item))), "")


def is_late_anywhere(value: object) -> bool:
    """Return whether only a run knows a value, or an item of it."""
    return bool(late_text(value))


def check_known(argument: str, value: object, *, of: str = "") -> None:
    """Raise ConfigurationError for a value that only a run has, if it must be known when the DAG is parsed."""
    for each in value if isinstance(value, list | tuple) else (value,):
        if is_resolved_later(each):
            raise wrong(
                argument,
                shown(each),
                f"Write the text itself as {argument}, the same for all map indexes.",
                code="value_known_too_late",
                of=of,
                why=", which is known only in a run. It must be known when Airflow parses the DAG",
            )


def refuse_object(argument: str, text: str, *, of: str = "") -> None:
    """ConfigurationError for text into which an object of Airflow was formatted, as f"t_{x}" does in a mapped group."""
    found = _OBJECT.search(text)  # the rest of the text may be a secret
    if found is None:
        return
    name = f"{found[0].strip('<(').partition(' object at')[0]}(...)"
    raise wrong(
        argument,
        name,
        f"Give the mapped value itself as {argument}, and map the group over whole values, such as"
        ' .expand(path=["/data/de", "/data/fr"]). Or make the text in a task of the group,'
        f' @task def text_of(x): return f"...", and give its output, text_of(x), as {argument}.',
        code="value_known_too_late",
        of=of,
        what=f"{argument} contains an object of Airflow formatted as text, {name}. It has a value only in a run.",
    )


def check_texts(argument: str, value: object, *, of: str = "") -> None:
    """A list of texts; a single text, of which each character would be taken for one, is none."""
    if isinstance(value, str):
        refuse_object(argument, value, of=of)
        raise wrong(argument, shown(value), f'Give a list: ["{value[:_LONGEST]}"].', of=of)
    later = "Give a list. Each of its items may be such a value: [value]." if is_resolved_later(value) else ""
    check_type(argument, value, Sequence, later or f"Give a list of texts as {argument}.", of=of)
    assert isinstance(value, Sequence)
    for index, each in enumerate(value):
        check_text(f"{argument}[{index}]", each, of=of)


def check_key(argument: str, name: object, *, of: str = "") -> None:
    """ConfigurationError for a name in a dictionary that is no text, or that only a run could know.

    Airflow renders the values of a dictionary, and none of its names.
    """
    check_type(f"a name in {argument}", name, str, f"Give text as each name in {argument}.", of=of)
    if is_template(name):
        why = ". Airflow renders the values of a dictionary, and not its names"
        remedy = "Write the name itself. Use Jinja only in the value."
        raise wrong(f"a name in {argument}", shown(name), remedy, code="template_not_rendered", of=of, why=why)


def check_plain(argument: str, value: object) -> None:
    """ConfigurationError for what is not data that can be written down as JSON; it names where that is.

    Text, numbers, True, False, None, and lists, tuples and dictionaries of these. What a run makes, such as a task's
    output, is judged when it is there.
    """
    if isinstance(value, str):
        refuse_object(argument, value)
    if value is None or isinstance(value, str | int | float) or is_resolved_later(value):
        return
    if isinstance(value, Mapping):
        for name, each in value.items():
            if isinstance(name, str):
                check_key(argument, name)
            check_plain(f"{argument}[{name!r}]", each)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            check_plain(f"{argument}[{index}]", each)
    else:  # it may be a secret: show only its type
        raise wrong(
            argument,
            _kind(value),
            "Give text, numbers, lists or dictionaries, such as str(path) or time.isoformat(). Create other objects in"
            " the job.",
            why=", which cannot be passed to Spark's driver",
        )


def _kind(value: object) -> str:
    return shown(value) if isclass(value) or isroutine(value) else kind_of(value)


def bound(argument: str, value: object, of: str, what: str) -> int | str | None:
    """Return an upper bound: a whole number of at least 1, or None for no bound.

    Accepts text that Jinja renders ("" and "None" mean no bound), and returns Jinja templates unchanged because they
    are rendered later.

    Raises:
        ConfigurationError: the value is neither a bound nor a template.
    """
    if value is None or is_template(value):
        return value  # type: ignore[return-value]
    if isinstance(value, str):
        refuse_object(argument, value, of=of)
    given = value.strip() if isinstance(value, str) else value
    if given in ("", "None"):
        return None
    number = int(given) if isinstance(given, str) and given.isascii() and given.isdigit() else given
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise wrong(argument, shown(value), f"Give a whole number of {what}, at least 1.", of=of)
    return number


def whole_number(argument: str, value: object, *, least: int = 0) -> int:
    """Return a whole number, also from text that Jinja made of it; ConfigurationError for anything else."""
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()) or int(text) < least:
        raise wrong(argument, shown(value), f"Give a whole number of at least {least} as {argument}.")
    return int(text)


def check_place(argument: str, value: object) -> None:
    """ConfigurationError for a path that is known and neither absolute nor a URI; an empty one names no place."""
    if not isinstance(value, str) or is_template(value) or not value.strip() or value.startswith(PLACES):
        return
    remedy = "Give an absolute path, a file:/// URI, hdfs://NAMENODE:PORT/PATH or s3://CONNECTION@BUCKET/FOLDER as"
    raise wrong(argument, shown(value), f"{remedy} {argument}.", code="path_invalid")


def check_length_of_time(argument: str, value: object) -> None:
    """ConfigurationError unless it is a timedelta, or a number of seconds, of 0 or more, or None."""
    remedy = f"Give a timedelta or seconds, 0 or more, as {argument}."
    check_type(argument, value, (timedelta, int, float), remedy, optional=True)
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, int | float) and not 0 <= seconds <= timedelta.max.total_seconds():
        raise wrong(argument, shown(value), remedy)


def standard_time(value: Any) -> Any:
    """Return a time or duration of pendulum as the standard library's, anything else as it is.

    Pendulum's differences and durations cannot be divided by a timedelta.
    """
    if isinstance(value, timedelta):
        return timedelta.__pos__(value)
    is_other = isinstance(value, datetime) and type(value) is not datetime
    return datetime.fromisoformat(value.isoformat()) if is_other else value


def check_zone(argument: str, at: datetime | None) -> None:
    """Raise ConfigurationError for a time without a time zone."""
    if at is not None and at.tzinfo is None:
        remedy = f"Add the zone, such as {at.isoformat()}+00:00."
        raise wrong(argument, str(at), remedy, code="time_zone_missing", why=", a time without a time zone")


def check_seconds(argument: str, value: object) -> None:
    """ConfigurationError unless it is a number of seconds, 0 or more."""
    remedy = f"Give a number of seconds, 0 or more, as {argument}."
    check_type(argument, value, (int, float), remedy)
    if not 0 <= value < float("inf"):  # type: ignore[operator]
        raise wrong(argument, shown(value), remedy)


def truth(argument: str, value: object) -> bool:
    """True or False, also as Jinja makes text of them; ConfigurationError."""
    found = _TRUTHS.get(str(value).strip().lower())
    if found is None:
        raise wrong(argument, shown(value), f"Give True or False as {argument}.")
    return found


def check_barrier(barrier: object) -> str:
    """Returns the id of a barrier: a short line of text, and no time, which would be a barrier of its own."""
    remedy = f'Give one line of 1 to {_LONGEST_BARRIER} characters as the id, such as "closing-2026-01-02".'
    if isinstance(barrier, str):
        refuse_object("barrier", barrier)
    good = isinstance(barrier, str) and 0 < len(barrier) <= _LONGEST_BARRIER and barrier == barrier.strip()
    if not isinstance(barrier, str) or not good or not barrier.isprintable():
        raise wrong("barrier", shown(barrier), remedy, what=f"the id of a barrier is {shown(barrier)}.")
    try:
        datetime.fromisoformat(barrier)
    except ValueError:
        return barrier
    text = f"the id of a barrier is {barrier!r}. A time is not allowed as an id."
    raise wrong("barrier", shown(barrier), remedy, what=text)


def check_options(value: object, of: str) -> None:
    """A dictionary of text, numbers and truth values by name."""
    check_type("options", value, Mapping, 'Give a dictionary as options, such as {"name": "value"}.', of=of)
    assert isinstance(value, Mapping)
    for name, each in value.items():
        check_key("options", name, of=of)
        # Its value may be a secret: show only the type.
        if isinstance(each, str):
            refuse_object(f"options[{name!r}]", each, of=of)
        if not isinstance(each, str | int | float | bool) and not is_resolved_later(each):
            raise wrong(f"options[{name!r}]", kind_of(each), f"Give text as options[{name!r}].", of=of)


def check_job(job: object) -> None:
    """ConfigurationError unless it is text that names a module, or an object in one, or source of the DAG file."""
    if isinstance(job, InlineJob):
        return
    remedy = 'Give "package.module" or "package.module:Name" as text. Spark\'s driver imports it.'
    if hasattr(type(job), "transform"):
        remedy = f"Give the class: job={type(job).__name__}, without parentheses. Its arguments belong into job_args."
    elif getattr(job, "__module__", "") == "__main__" or str(getattr(job, "__module__", "")).startswith(_OF_A_DAG):
        is_lambda = getattr(job, "__name__", "") == "<lambda>"
        remedy = f"Write {'it with def, and ' if is_lambda else ''}@airflow_ft.job above it."
    elif isclass(job):
        remedy = f'Write @airflow_ft.job above it, or name it: "{job.__module__}:{job.__qualname__}".'
    elif isroutine(job):
        remedy = f'Write @airflow_ft.job above it, or name its module: "{job.__module__}", with a function `transform`.'
    check_type("job", job, str, remedy)
    assert isinstance(job, str)
    if not _JOB.fullmatch(job):
        raise wrong("job", shown(job), remedy, what=f"{shown(job)} does not name a job.")
