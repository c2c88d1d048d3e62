"""headrace.toml: what it may contain, and what its errors say."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

from headrace.sinks.conditions import Moment, RowTest
from headrace.sinks.configuration import (
    ConfigurationError,
    SinkConfiguration,
    load_sinks,
    parse_sinks,
)
from headrace.sinks.configuration_keys import KEYS, Initial, OnError, SinkOperation
from headrace.sinks.formats import Format
from headrace.sinks.port import Pace

WHOLE = """\
[[sink]]
name = "orders"
to = "file:///var/lib/changes"
tables = ["orders", "app.*"]
operations = ["insert", "update"]
columns = {orders = ["id", "total"]}
where = {orders = [["region", "in", ["eu", "us"]], ["made", ">=", 2026-01-01T00:00:00Z]]}
key = ["id"]
topic = "{schema}.{data.region}"
format = "debezium"
snapshot = "initial"
on_error = "park"
batch = {events = 10, wait_ms = 5, timeout_s = 3}

[sink.options]
form = "parquet"
aws_secret_access_key = "env:KEY"
"""


def one(text: str, **environ: str) -> SinkConfiguration:
    (found,) = parse_sinks(text, "headrace.toml", environ).values()
    return found


def test_every_key_is_read() -> None:
    made = Moment("2026-01-01T00:00:00+00:00")
    assert one(WHOLE) == SinkConfiguration(
        name="orders",
        to="file:///var/lib/changes",
        tables=("orders", "app.*"),
        operations=(SinkOperation.INSERT, SinkOperation.UPDATE),
        columns={"orders": ("id", "total")},
        where={
            "orders": (RowTest("region", "in", ("eu", "us")), RowTest("made", ">=", made)),
        },
        key=("id",),
        destination="{schema}.{data.region}",
        format=Format.DEBEZIUM,
        snapshot=Initial.INITIAL,
        on_error=OnError.PARK,
        pace=Pace(10, 0.005, 3),
        options={"form": "parquet", "aws_secret_access_key": "env:KEY"},
    )


def test_a_sink_needs_only_a_name_and_an_address() -> None:
    found = one('[[sink]]\nname = "a"\nto = "file:///x"')
    assert found.takes("public", "orders")
    assert found.pace.events_max == 50_000, "the target's own"


@pytest.mark.parametrize(
    ("line", "key", "says"),
    [
        ('name = "A b"', "sink.name", "is not a sink's name"),
        ('to = "nowhere://x"', "sink.to", "no sink writes to 'nowhere'"),
        ('to = "kafka://me:word@broker"', "sink.to", "contains a password"),
        ('tables = "orders"', "sink.tables", "is not a list of texts: write one such as"),
        ('topic = ""', "sink.topic", "is empty: write a text, or leave the key out"),
        ("topic = 5", "sink.topic", "is not a text: write one in quotes"),
        ('operations = ["upsert"]', "sink.operations", "is not one of insert"),
        ('topic = "{nothing}"', "sink.topic", "{nothing} is not known"),
        ('format = "avro"', "sink.format", "is not one of json"),
        ('on_error = "ignore"', "sink.on_error", "is not one of stop, park"),
        ('where = [["name", "<", "m"]]', "sink.where", "collation"),
        ('where = [["name", "like", "m"]]', "sink.where", "a condition of filter"),
        ("batch = {events = 0}", "sink.batch", "less than 1"),
        ("batch = {rows = 1}", "sink.batch", "has no key rows"),
        ('function = "no_such_module:f"', "sink.function", "no_such_module"),
        ("colour = 1", "sink.colour", "is not a key of a sink"),
        ('options = {password = "word"}', "sink.options.password", "is a secret"),
        ('options = {password = "file:///run/word"}', "sink.options.password", "is a secret"),
    ],
)
def test_an_error_names_file_line_and_key(line: str, key: str, says: str) -> None:
    values = {"name": 'name = "a"', "to": 'to = "file:///x"'}
    values[line.partition(" ")[0]] = line
    text = "# the sinks\n[[sink]]\n" + "\n".join(values.values())
    number = text.splitlines().index(line) + 1
    with pytest.raises(ConfigurationError) as refused:
        parse_sinks(text, "headrace.toml", {})
    assert str(refused.value).startswith(f"headrace.toml:{number}: {key} ")
    assert says in str(refused.value)


def test_an_error_in_the_second_sink_names_its_line() -> None:
    text = '[[sink]]\nname = "a"\nto = "file:///x"\n\n[[sink]]\nname = "a"\nto = "file:///y"\n'
    with pytest.raises(ConfigurationError, match=r"^headrace.toml:6: sink.name 'a' is the name"):
        parse_sinks(text, "headrace.toml", {})


def test_text_that_is_not_toml_names_its_line() -> None:
    with pytest.raises(ConfigurationError, match=r"^headrace.toml:2: "):
        parse_sinks("[[sink]]\nname = \n", "headrace.toml", {})


def test_a_variable_overrides_a_key() -> None:
    found = one(
        '[[sink]]\nname = "a-b"\nto = "file:///x"',
        HEADRACE_SINK_A_B_TO="file:///y",
        HEADRACE_SINK_A_B_TABLES="orders,app.*",
        HEADRACE_SINK_A_B_BATCH="{events = 7}",
    )
    assert (found.to, found.tables) == ("file:///y", ("orders", "app.*"))
    assert found.pace.events_max == 7


def test_an_error_of_a_variable_names_the_variable() -> None:
    with pytest.raises(ConfigurationError, match=r"^HEADRACE_SINK_A_FORMAT 'x' is not one of"):
        one('[[sink]]\nname = "a"\nto = "file:///x"', HEADRACE_SINK_A_FORMAT="x")


def test_secrets_are_read_only_when_they_are_needed(tmp_path: Path) -> None:
    word = tmp_path / "word"
    word.write_text("from a file\n")
    found = one(
        '[[sink]]\nname = "a"\nto = "env:ADDRESS"\n[sink.options]\n'
        f'password = "file:{word}"\ntoken = "env:TOKEN"\nurl = "file:///not/a/reference"\n'
    )
    assert found.secrets({"TOKEN": "t"}) == {
        "password": "from a file",
        "token": "t",
        "url": "file:///not/a/reference",
    }
    assert found.address({"ADDRESS": "https://example.org"}) == "https://example.org"
    with pytest.raises(ConfigurationError, match="TOKEN"):
        found.secrets({})


def test_a_missing_file_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--config"):
        load_sinks(tmp_path / "headrace.toml", {})


def test_keys_of_tables_are_for_databases_and_name_a_column() -> None:
    head = '[[sink]]\nname = "a"\nto = "{}"\n'
    found = one(head.format("sqlite:///x") + 'soft_delete = "gone"\ndestination = "x.{table}"')
    assert found.rules.of("app", "t").place == ("x", "t")
    assert found.rules.of("app", "t").soft_delete == "gone"
    for text in ('soft_delete = ""', f'soft_delete = "{"ü" * 32}"', "soft_delete = true"):
        with pytest.raises(ConfigurationError, match=r"headrace\.toml:4: sink\.soft_delete"):
            one(head.format("sqlite:///x") + text)
    with pytest.raises(ConfigurationError, match=r"headrace\.toml:4: sink\.soft_delete applies to"):
        one(head.format("file:///x") + 'soft_delete = "gone"')


def test_a_history_is_switched_on_and_marks_no_deleted_rows() -> None:
    head = '[[sink]]\nname = "a"\nto = "sqlite:///x"\n'
    assert one(head + "history = true").rules.of("app", "t").history
    assert one(head, HEADRACE_SINK_A_HISTORY="true").history
    assert not one(head + "history = true", HEADRACE_SINK_A_HISTORY="false").history
    with pytest.raises(ConfigurationError, match=r"headrace\.toml:4: sink\.history is not true"):
        one(head + "history = 1")
    with pytest.raises(ConfigurationError, match=r"toml:5: sink\.soft_delete does not apply to a"):
        one(head + 'history = true\nsoft_delete = "gone"')


SCHEMA = json.loads((Path(__file__).parents[3] / "docs/headrace.schema.json").read_text())


def valid(text: str) -> bool:
    # As editors check TOML: dates are strings of JSON.
    content = json.loads(json.dumps(tomllib.loads(text), default=str))
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(content)


def test_the_published_schema_has_every_key_and_accepts_them() -> None:
    assert SCHEMA["$defs"]["sink"]["properties"].keys() == KEYS.keys()
    assert valid(WHOLE)


@pytest.mark.parametrize(
    "line",
    [
        'name = "A b"',
        'tables = "orders"',
        'operations = ["upsert"]',
        'format = "avro"',
        'where = [["name", "like", "m"]]',
        "batch = {events = 0}",
        "colour = 1",
    ],
)
def test_the_published_schema_refuses_what_the_loader_refuses(line: str) -> None:
    values = {"name": 'name = "a"', "to": 'to = "file:///x"'}
    values[line.partition(" ")[0]] = line
    assert not valid("[[sink]]\n" + "\n".join(values.values()))


@pytest.mark.parametrize("to", ["opensearch://127.0.0.1:9200", "https://example.org/hook"])
def test_an_address_in_a_variable_has_the_pace_of_its_target(to: str) -> None:
    found = one('[[sink]]\nname = "a"\nto = "env:ADDRESS"', ADDRESS=to)
    assert found.pace == one(f'[[sink]]\nname = "a"\nto = "{to}"').pace
    assert found.pace != Pace()
    assert one('[[sink]]\nname = "a"\nto = "env:ADDRESS"').pace == Pace()
