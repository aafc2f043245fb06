"""Secrets in texts and in source, by the names before them."""

from __future__ import annotations

import pytest

from airflow_ft.protocol.secrets import safe_uri, without_secrets
from airflow_ft.protocol.shown_source import shown_source


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password=planted&a=1", "password=***&a=1"),
        ("host=db password='planted \\' one' port=1", "host=db password='***' port=1"),
        ('required username="me" password="planted\\"one";', 'required username="me" password="***";'),
        ('{"api_key": "planted", "key": "k"}', '{"api_key": "***", "key": "k"}'),
        (r"{\"pwd\": \"planted\", \"a\": 1}", r"{\"pwd\": \"***\", \"a\": 1}"),
        ("token='planted and cut", "token='***"),
        ("fs.azure.account.key.x.net=planted -Da=1", "fs.azure.account.key.x.net=*** -Da=1"),
        ("https://maps.example/?key=planted", "https://maps.example/?key=***"),
        ("redis://:plant@ed@h:1/0 a@b", "redis://***@h:1/0 a@b"),
        ("s3a://AKIA:pl/an@t/ed@lake/x, 'b@c'", "s3a://***@lake/x, 'b@c'"),
        ("redis://u:plan@t'ed@h:1", "redis://***@h:1"),
        ("hdfs://nn:8020/user/me@REALM.COM/x is away", "hdfs://nn:8020/user/me@REALM.COM/x is away"),
        ("https://git:8443/a/b.git@main", "https://git:8443/a/b.git@main"),
        ('{"a":"http://h:1/x","b":"me@x"}', '{"a":"http://h:1/x","b":"me@x"}'),
        ("{'a': {\n 'token': 'planted'},\n 'x.pwd' : 'planted'}", "{'a': {\n 'token': '***'},\n 'x.pwd' : '***'}"),
        ("dict(password=('planted'))", "dict(password=('***'))"),
        ("(see `?pwd=pl`an)ted`)", "(see `?pwd=***`)"),
        ("sinks 'a', tokens: 'b' and 'token': 'c' have", "sinks 'a', tokens: 'b' and 'token': 'c' have"),
        (
            "file:///out/token_type=ERC20/day=1/a.parquet?token=planted",
            "file:///out/token_type=ERC20/day=1/a.parquet?token=***",
        ),
        (
            "primary_key=['id'], row_key='{id}' of s3://lake@bucket/key=1",
            "primary_key=['id'], row_key='{id}' of s3://lake@bucket/key=1",
        ),
    ],
)
def test_a_value_is_hidden_that_follows_the_name_of_a_secret(text: str, shown: str) -> None:
    assert without_secrets(text) == without_secrets(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "a-" * 50_000,
        "token" * 20_000,
        "password='" * 10_000,
        "api_key" * 15_000,
        "token=" + " " * 100_000 + "x",
        "token=" + '"x'.join(["\\" * 99_999] * 2),
        "://a:" * 20_000,
    ],
)
def test_a_long_text_takes_no_longer_than_its_length(text: str) -> None:
    """Where it took the square of it, one text took minutes."""
    assert without_secrets(text).startswith(text[:5])


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3a://AKIA:pl/an@t/ed@lake/x", "s3a://...@lake/x"),
        ("abfss://c@a.dfs.core.windows.net/x?sig=planted", "abfss://...@a.dfs.core.windows.net/x"),
        ("https://h/x?sig=planted", "https://h/x"),
        ("abfss://h/x?sig=plan@ted", "abfss://..."),
        ("https://u:plan?t@ed@h/x", "https://..."),
        ("gs://bucket/day=1/a b", "gs://bucket/day=1/a b"),
        ("out/x", "out/x"),
    ],
)
def test_a_uri_is_shown_without_login_and_query(uri: str, shown: str) -> None:
    assert safe_uri(uri) == shown


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ('read.option("password", "planted")', "read.option(\"password\", '***')"),
        ('conf.set("fs.s3a.secret.key", f"planted{n}")', "conf.set(\"fs.s3a.secret.key\", '***')"),
        ('PASSWORD = """planted\ntwice"""\nb = "b"', "PASSWORD = '***'\nb = \"b\""),
        ('PASSWORD = (\n    "planted"\n    "planted"\n)', "PASSWORD = (\n    '***'\n)"),
        ('user, pwd = "ö", b"planted"', "user, pwd = \"ö\", '***'"),
        ('pairs = [("token", "planted"), ("a", "b")]', 'pairs = [("token", \'***\'), ("a", "b")]'),
        ('    def f(user="a", *, token: str = "planted"): ...', "    def f(user=\"a\", *, token: str = '***'): ..."),
        ('os.environ["DB_PASSWORD"] = a or "planted"', "os.environ[\"DB_PASSWORD\"] = a or '***'"),
        ('{"credentials": {"key": "planted"}, "key": "k"}', '{"credentials": {"key": \'***\'}, "key": "k"}'),
        ("x = f\"{connect(password='planted')} and {y}\"", "x = '***'"),
        ('conf.set(f"fs.azure.account.key.{a}.net", "planted")', "conf.set(f\"fs.azure.account.key.{a}.net\", '***')"),
        ('conf.set("fs.azure.account.key." + a, "planted")', "conf.set(\"fs.azure.account.key.\" + a, '***')"),
        ('conf.set(key="secret", value="planted")', "conf.set(key=\"secret\", value='***')"),
        ('conf.set("secret", value="planted")', "conf.set(\"secret\", value='***')"),
        ('{f"{a}.password": "planted"}', "{f\"{a}.password\": '***'}"),
        ('password = SecretStr("planted")', "password = SecretStr('***')"),
        ('token = "planted".encode()', "token = '***'.encode()"),
        ("not Python, password=planted", "***"),
    ],
)
def test_a_text_in_source_is_hidden_if_a_secrets_name_has_it(source: str, shown: str) -> None:
    assert shown_source(source) == shown


@pytest.mark.parametrize(
    "source",
    [
        'def f(df):\n    return df.select("a", f"{b:>{c}}").sort(key=Variable.get("token"), x="é")  # ü\n',
        'df.select("id", "token", "amount").groupBy("token", "country")',
        'df.withColumnRenamed("token", "id_x").withColumn("token", F.lit("x"))',
    ],
)
def test_source_without_secrets_is_shown_as_it_is(source: str) -> None:
    assert shown_source(source) == source
