"""Every type of the contract's table of values, at its edges, from PostgreSQL to the targets of
sinks, read back by their own clients; and the page that says how each target has it.

`HEADRACE_WRITE_PAGES=1` writes docs/sinks-types.md, which this test compares otherwise.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from valkey.asyncio import Valkey

from headrace.contract.values import SESSION_SETTINGS
from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.opensearch import OpenSearchServer
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import Suite
from headrace.testing.valkey import ValkeyServer
from headrace.testing.value_cases import ARRAYS, CASES, TEXT, Both, Case
from tests.support.exactly_once import environment
from tests.support.opensearch_reading import Reader
from tests.support.sinks import lines_of, sink_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PAGE = Path(__file__).parents[3] / "docs/sinks-types.md"
WAIT_S = 300.0
SHOWN = 36
ALL = (*CASES, *ARRAYS)
HEAD = """# Types in sinks

This page shows how each target stores a value of each PostgreSQL type. The value is the first one in the test that
generates this page. The test writes every type at its edges (NaN, infinity, years before Christ, the longest numerics,
odd texts, nested documents), reads the values back with the target's own client, and compares each with PostgreSQL's.

- **JSON** is `format = "json"` in files, Kafka, RabbitMQ, Valkey's streams and webhooks, which all have the same bytes.
  CloudEvents contain the same in `data`.
- **Debezium** is `format = "debezium"`.
- **Row** is a field of Valkey's hashes (`form = "state"`). A NULL has no field.
- **OpenSearch** is the document's value, and **field** is the type of the field that searches use
  ([OpenSearch](sinks-opensearch.md#types)).
- **exact**: JSON can't hold some values of the type completely. Then the event also has PostgreSQL's text in `exact`
  (in Debezium's envelope, as the value), and a row has that text; a document has both. No value is rounded or cut.

| type | PostgreSQL prints | JSON | Debezium | row | OpenSearch | field | exact |
|---|---|---|---|---|---|---|---|
"""


@dataclass
class Seen:
    """One value in all targets."""

    case: Case
    printed: str | None
    wanted: Any
    json: Any = None
    exact: str | None = None
    debezium: Any = None
    row: bytes | None = None
    document: Any = None
    document_text: str | None = None
    field: str = ""


async def written(database: Database) -> dict[tuple[str, int], Seen]:
    """Write every value; returns what PostgreSQL's output functions print."""
    reader = await database.connect()
    for name, value in SESSION_SETTINGS.items():
        await reader.execute("SELECT set_config($1, $2, false)", name, value)
    found = {}
    for case in ALL:
        table = f"value_{case.name}"
        rows = ", ".join(f"({at}, {literal})" for at, (literal, _) in enumerate(case.values))
        if case.setup:
            await database.execute(case.setup)
        await database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v {case.type})")
        await database.execute(f"INSERT INTO {table} VALUES {rows}")
        text = "CASE WHEN num_nonnulls(v) = 1 THEN format('%s', v) END"
        printed = await reader.fetch(f"SELECT {text} FROM {table} ORDER BY id")
        for at, ((_, expected), (one,)) in enumerate(zip(case.values, printed, strict=True)):
            wanted = expected.msgpack if isinstance(expected, Both) else expected
            # Arrays are PostgreSQL's literal by default; the cases have the list.
            if wanted is TEXT or case in ARRAYS:
                wanted = one
            found[table, at] = Seen(case, one, wanted)
    await reader.close()
    return found


def in_json(value: Any) -> Any:
    """A native value as the contract's JSON has it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if isinstance(value, list):
        return [in_json(one) for one in value]
    if isinstance(value, dict):
        return {name: in_json(one) for name, one in value.items()}
    return value


def check(seen: Seen) -> None:
    """Raise unless each target has the value, or PostgreSQL's text of it."""
    place = f"{seen.case.name}: {str(seen.printed)[:60]}"
    if seen.exact is None:
        assert repr(seen.json) == repr(in_json(seen.wanted)), place
        assert repr(seen.debezium) == repr(in_json(seen.wanted)), place
    else:
        assert seen.exact == seen.printed, place
        assert seen.debezium == seen.printed, place
    # The document keeps both: the value, and the text if the value loses something.
    assert repr(seen.document) == repr(in_json(seen.wanted)), place
    assert seen.document_text == seen.exact, place
    check_row(seen, place)


def check_row(seen: Seen, place: str) -> None:
    """The same for a field of a hash."""
    wanted, row = seen.wanted, seen.row
    if seen.exact is not None:
        assert row == seen.exact.encode(), place
    elif wanted is None:
        assert row is None, place
    elif isinstance(wanted, bytes):
        assert row == wanted, place
    elif isinstance(wanted, str):
        assert (row or b"").decode() == wanted, place
    elif isinstance(wanted, float):
        assert repr(float(row or b"")) == repr(wanted), place
    else:
        assert json.loads(row or b"") == in_json(wanted), place


def page(values: Iterator[Seen]) -> str:
    """The page, with the first value of each type that is not NULL."""
    first: dict[str, list[Seen]] = {}
    for seen in values:
        first.setdefault(seen.case.name, []).append(seen)
    lines = []
    for group in first.values():
        shown = next((one for one in group if one.printed is not None), group[0])
        row = "" if shown.row is None else shown.row.decode(errors="backslashreplace")
        exact = "some" if any(one.exact is not None for one in group) else ""
        cells = (
            *(cell(text) for text in (shown.case.type, shown.printed or "")),
            *(cell(json.dumps(one, ensure_ascii=False)) for one in (shown.json, shown.debezium)),
            cell(row),
            cell(json.dumps(shown.document, ensure_ascii=False)),
            shown.field,
            exact,
        )
        lines.append(f"| {' | '.join(cells)} |\n")
    return HEAD + "".join(lines)


def cell(text: str) -> str:
    if len(text) > SHOWN:
        text = text[:SHOWN] + "…"
    text = text.encode("unicode_escape").decode().replace("|", "\\|").replace("`", "'")
    text = text.replace("\\u2026", "…")
    return f"`{text}`" if text else ""


async def test_every_type_arrives_in_every_target_and_the_page_says_how(
    own_postgres: OwnPostgres,
    own_nats: OwnNats,
    own_valkey: ValkeyServer,
    opensearch: OpenSearchServer,
    names: Names,
    tmp_path: Path,
) -> None:
    postgres, server = await own_postgres(), await own_nats()
    database = Database(postgres, "postgres")
    await database.execute("CREATE PUBLICATION headrace FOR ALL TABLES")
    folders = {form: tmp_path / form for form in ("json", "debezium")}
    parts = []
    for form, folder in folders.items():
        folder.mkdir()
        parts.append(f'[[sink]]\nname = "{form}"\nto = "{folder.as_uri()}"\nformat = "{form}"\n')
    parts.append(f'[[sink]]\nname = "rows"\nto = "valkey://127.0.0.1:{own_valkey.port}"\n')
    search = names.other("sink").lower().replace("_", "-")
    parts.append(
        f'[[sink]]\nname = "{search}"\nto = "opensearch://127.0.0.1:{opensearch.port}"\n'
        f'index = "{search}.{{table}}"\noptions = {{replicas = 0}}\n'
    )
    config = tmp_path / "headrace.toml"
    config.write_text("".join(f"{part}batch = {{wait_ms = 200}}\n" for part in parts))
    settings = environment(postgres, server, "event")
    async with contextlib.AsyncExitStack() as stack:
        suite = await stack.enter_async_context(Suite(settings, tmp_path))
        await suite.logged("wal-reader", "epoch_opened")
        for name in (*folders, "rows", search):
            await stack.enter_async_context(sink_process(settings, config, name))
        found = await written(database)
        client: Any = await stack.enter_async_context(Valkey(port=own_valkey.port))
        async with asyncio.timeout(WAIT_S):
            while not await complete(found, folders, client):  # noqa: ASYNC110  # other processes
                await asyncio.sleep(0.5)
            while not searched(found, Reader(opensearch), search):  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.5)
    await database.close()
    for seen in found.values():
        check(seen)
    text = page(iter(found.values()))
    if os.environ.get("HEADRACE_WRITE_PAGES"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "HEADRACE_WRITE_PAGES=1 writes it again"


async def complete(
    found: dict[tuple[str, int], Seen], folders: dict[str, Path], client: Any
) -> bool:
    """Read every target; whether all have everything."""
    arrived = 0
    for line in lines_of(folders["json"]):
        event = json.loads(line)
        if event["operation"] == "INSERT":
            seen = found[event["table"], event["data"]["id"]]
            seen.json = event["data"]["v"]
            seen.exact = event.get("exact", {}).get("v")
            arrived += 1
    for line in lines_of(folders["debezium"]):
        body = json.loads(line)
        if body["op"] == "c":
            row = body["after"]
            found[body["source"]["table"], row["id"]].debezium = row["v"]
            arrived += 1
    for (table, at), seen in found.items():
        key = f"{{rows}}:public.{table}:{at}"
        arrived += bool(await client.exists(key))
        seen.row = await client.hget(key, "v")
    return arrived == 3 * len(found)


def searched(found: dict[tuple[str, int], Seen], reader: Reader, prefix: str) -> bool:
    """Read every document and the fields; whether all have arrived."""
    arrived = 0
    for table in {table for table, _ in found}:
        index = f"{prefix}.{table}"
        rows = reader.every(index)
        for row in rows:
            seen = found[table, row["id"]]
            seen.document = row["v"]
            seen.document_text = row.get("=text", {}).get("v")
            seen.field = described(reader.fields(index)["v"])
        arrived += len(rows)
    return arrived == len(found)


def described(field: dict[str, Any]) -> str:
    """The type of a field, and those of the fields within it."""
    kind = str(field.get("type", "object"))
    if field.get("enabled") is False:
        kind = "object, not indexed"
    inner = (f"`.{name}` {one['type']}" for name, one in field.get("fields", {}).items())
    return ", ".join((kind, *inner))
