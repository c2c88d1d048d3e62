"""Compares what arrived with the source's own record: triggers' notes, and the tables' values as
text.

The judges are SQL of the databases, pyarrow and a plain reader of the stream; no reader here shares
code with the writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import asyncpg
import pyarrow.parquet as pq

from tests.options import script
from tests.options.world import World
from tests.oracle.foreign_reader import Message, foreign_reader

ARRIVE_S = 180.0
_POLL_S = 0.5
_ROWS = {"INSERT", "UPDATE", "DELETE", "TRUNCATE"}
# table, what was done, key
Change = tuple[str, str, str | None]


async def judge(world: World) -> None:
    """Everything that is attached, one after the other; each is given the time that it needs to
    arrive.
    """
    await _stream(world)
    for name in world.mirrors:
        await _arrives(world, f"the {name} mirror", functools.partial(_mirror, world, name))
    if world.audited:
        await _arrives(world, "the audit trail", lambda: _trail(world))
    if world.combination["archive"] != "none":
        await _arrives(world, "the archive", lambda: _archive(world))


async def _arrives(
    world: World, what: str, differences: Callable[[], Awaitable[list[str]]]
) -> None:
    """Wait until there are no differences; say which are left if they stay."""
    deadline = time.monotonic() + ARRIVE_S
    while found := await differences():
        assert time.monotonic() < deadline, "\n".join(
            [f"{what} differs:", *found[:40], world.logs()]
        )
        await asyncio.sleep(_POLL_S)


async def _noted(world: World, tables: Iterable[str] | None = None) -> list[Change]:
    """The changes that the triggers saw, in the order in which they happened."""
    rows = await world.source.fetch('SELECT "table", operation, id FROM oracle.notes ORDER BY n')
    noted = [(row["table"], row["operation"], row["id"]) for row in rows]
    hidden = {script.EXCLUDED_TABLE} if world.excluding else set()
    wanted = None if tables is None else set(tables)
    return [
        change
        for change in noted
        if change[0] not in hidden and (wanted is None or change[0] in wanted)
    ]


# The stream


async def _stream(world: World) -> None:
    await _arrives(world, "the stream", lambda: _stream_differs(world))


async def _stream_differs(world: World) -> list[str]:
    async with foreign_reader(world.nats_url, world.state_bucket) as reader:
        messages: list[Message] = await reader.read()
    found: list[str] = []
    noted = await _noted(world)
    bridge = world.combination["compat"] == "bridge"
    expected = [change for change in noted if not (bridge and change[1] == "TRUNCATE")]
    rows = [message for message in messages if message.operation in _ROWS]
    seen = [_change(message) for message in rows]
    # Positions order each source; with batches each table of it.
    groups = _groups(world)
    for tables in groups:
        wanted, given = _of(expected, tables), _of(seen, tables)
        if wanted != given:
            found += [f"{sorted(tables)}: {line}" for line in _first_difference(wanted, given)]
    if not bridge:
        found += _positions(world, rows) + _messages(world, messages)
        found += _hidden(messages) if world.excluding else []
    ids = Counter(message.msg_id for message in messages if message.msg_id)
    if world.combination["delivery"] != "batch":
        found += [f"the id {one} was used {count} times" for one, count in ids.items() if count > 1]
    return found


def _change(message: Message) -> Change:
    key = message.payload["data"].get("id") if message.operation != "TRUNCATE" else None
    return message.payload["table"], message.operation, None if key is None else str(key)


def _groups(world: World) -> list[set[str]]:
    tables = {table.rpartition(".")[2] for table in script.TABLES} | {"fresh"}
    if world.combination["delivery"] == "batch":
        return [{table} for table in sorted(tables)]
    return [{"things"}, tables - {"things"}] if world.combination["sources"] == "two" else [tables]


def _of(changes: Iterable[Change], tables: set[str]) -> list[Change]:
    return [change for change in changes if change[0] in tables]


def _first_difference(wanted: list[Any], given: list[Any]) -> list[str]:
    for number, (one, other) in enumerate(itertools.zip_longest(wanted, given)):
        if one != other:
            return [
                (
                    f"change {number} of {len(wanted)} ({len(given)} arrived) is {other}, expected "
                    f"{one}"
                )
            ]
    return []


def _positions(world: World, rows: list[Message]) -> list[str]:
    """They rise, and each transaction's end is where its last change is."""
    batches = world.combination["delivery"] == "batch"
    before: dict[Any, tuple[int, int]] = {}
    last: dict[Any, bool] = {}
    for message in rows:
        payload = message.payload
        lane = (payload["source"], payload["table"]) if batches else payload["source"]
        position = (payload["tx"]["lsn"], payload["tx"]["seq"])
        if before.get(lane, (0, -1)) >= position:
            return [f"{lane}: position {position} comes after {before[lane]}"]
        if not batches and before.get(lane, position)[0] != position[0] and not last[lane]:
            return [
                f"{lane}: no change says that it is the last of the transaction at {before[lane]}"
            ]
        before[lane], last[lane] = position, payload["tx"]["last"] or _ended_by_message(payload)
    return []


def _ended_by_message(payload: dict[str, Any]) -> bool:
    """Each transaction of the script emits a message, which may be its last event."""
    return bool(payload["tx"]["seq"] > 0 or payload["tx"]["last"])


def _messages(world: World, messages: list[Message]) -> list[str]:
    """Both sources have each emitted message, once."""
    sources = {message.payload["source"] for message in messages if message.operation in _ROWS}
    wanted = sorted(f"message {number}" for number in range(script.MESSAGES))
    found = []
    for source in sorted(sources):
        given = sorted(
            message.payload["content"]
            for message in messages
            if message.operation == "MESSAGE" and message.payload["source"] == source
            if message.payload["prefix"] == "note"
        )
        if given != wanted:
            found.append(f"{source} has {len(given)} of {len(wanted)} emitted messages: {given}")
    if len(sources) != (2 if world.combination["sources"] == "two" else 1):
        found.append(f"the sources are {sources}")
    return found


def _hidden(messages: list[Message]) -> list[str]:
    text = "\n".join(repr(message.payload) for message in messages)
    return [
        f"{words!r} is in the stream" for words in ("top secret", "hidden away") if words in text
    ]


# Mirrors


async def _tables(world: World) -> dict[str, list[str]]:
    """Each published table with its columns, as the catalog has them; what is excluded left out."""
    rows = await world.source.fetch(
        "SELECT table_schema || '.' || table_name AS name, "
        "array_agg(column_name::text ORDER BY ordinal_position) AS columns "
        "FROM information_schema.columns WHERE table_schema IN ('public', 'app', 'other') GROUP BY "
        "1 ORDER BY 1"
    )
    found = {row["name"]: list(row["columns"]) for row in rows}
    if world.combination["sources"] == "two":
        # Of the second source no schemas are kept here, so that no mirror finds it.
        del found["other.things"]
    if world.excluding:
        del found[f"public.{script.EXCLUDED_TABLE}"]
        found["public.items"].remove(script.EXCLUDED_COLUMN.partition(".")[2])
    return found


async def _mirror(world: World, name: str) -> list[str]:
    assert world.mirrors[name].runs, f"the {name} mirror ended:\n{world.mirrors[name].log[-4000:]}"
    found = []
    for table, columns in (await _tables(world)).items():
        wanted = sorted(map(_sortable, await _texts(world, world.source, table, columns, name)))
        try:
            read = _sqlite_texts(world, table, columns) if name == "sqlite" else None
            given = (
                read
                if read is not None
                else await _texts(world, world.mirrored, table, columns, name)
            )
        except (asyncpg.PostgresError, sqlite3.Error) as error:
            found.append(f"{table}: {error}")
            continue
        found += [
            f"{table}: {line}"
            for line in _rows_differ(columns, wanted, sorted(map(_sortable, given)))
        ]
    return found


def _sortable(row: Iterable[Any]) -> tuple[tuple[bool, str], ...]:
    return tuple((value is not None, str(value)) for value in row)


def _rows_differ(columns: list[str], wanted: list[Any], given: list[Any]) -> list[str]:
    missing, extra = Counter(wanted) - Counter(given), Counter(given) - Counter(wanted)
    found = (
        [f"{len(given)} rows, the source has {len(wanted)}"] if len(wanted) != len(given) else []
    )
    for one, other in itertools.zip_longest(list(missing)[:3], list(extra)[:3]):
        if one and other:
            found += [
                f"{column} is {mine[1]!r}, at the source {theirs[1]!r}"
                for column, theirs, mine in zip(columns, one, other, strict=True)
                if mine != theirs
            ]
        else:
            found.append(f"missing {one}, extra {other}")
    return found


async def _texts(
    world: World, database: Any, table: str, columns: list[str], mirror: str
) -> list[list[Any]]:
    """A table's rows, every value as PostgreSQL's own text; for SQLite as what docs/mirror.md says
    of its type.
    """
    kinds = await world.source.fetch(
        "SELECT attname::text AS name, format_type(atttypid, NULL) AS type FROM pg_attribute "
        "WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped",
        table,
    )
    types = {kind["name"]: kind["type"] for kind in kinds}
    form = _sqlite_form if mirror == "sqlite" else _own_text
    wanted = ", ".join(form(column, types[column]) for column in columns)
    schema, _, name = table.partition(".")
    connection = await asyncpg.connect(database.dsn)
    try:
        await connection.execute("SET timezone = 'UTC'; SET intervalstyle = 'iso_8601'")
        return [
            list(row) for row in await connection.fetch(f'SELECT {wanted} FROM "{schema}"."{name}"')
        ]
    finally:
        await connection.close()


def _own_text(column: str, _type: str) -> str:
    return f'"{column}"::text'


def _sqlite_form(column: str, kind: str) -> str:
    """Booleans are 0 and 1, bytea is bytes, a moment is ISO 8601; all else is PostgreSQL's text."""
    name = f'"{column}"'
    if kind == "boolean":
        return f"({name}::int)::text"
    if kind == "bytea":
        return f"encode({name}, 'hex')"
    if kind == "timestamp with time zone":
        iso = f"""to_char({name}, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
        return f"CASE WHEN isfinite({name}) AND extract(year FROM {name}) > 0 THEN {iso} ELSE {name}::text END"
    if kind == "double precision":
        # SQLite has no negative zero.
        return f"CASE WHEN {name} = 0 THEN '0' ELSE {name}::text END"
    if kind.endswith("[]"):
        # As a list or a literal, by the option: left to the tests of arrays.
        return f"({name} IS NULL)::text"
    return f"{name}::text"


def _sqlite_texts(world: World, table: str, columns: list[str]) -> list[list[Any]]:
    schema, _, name = table.partition(".")
    where = f'"{name}"' if schema == "public" else f'"{table}"'
    with contextlib.closing(
        sqlite3.connect(f"file:{world.sqlite}?mode=ro", uri=True)
    ) as connection:
        rows = connection.execute(
            f"SELECT {', '.join(_quoted(column) for column in columns)} FROM {where}"
        ).fetchall()
    lists = {"tags", "names", "docs"}
    return [
        [_sqlite_text(value, column in lists) for column, value in zip(columns, row, strict=True)]
        for row in rows
    ]


def _quoted(column: str) -> str:
    return f'"{column}"'


def _sqlite_text(value: Any, is_list: bool) -> str | None:
    if is_list:
        return "true" if value is None else "false"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return _float_text(value)
    return None if value is None else str(value)


def _float_text(value: float) -> str:
    """As PostgreSQL prints it: shortest, without a fraction of zero."""
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value).removesuffix(".0")


# The trail and the archive


async def _trail(world: World) -> list[str]:
    """Each source's rows are the triggers' notes, in order, with the user."""
    found = []
    rows = await world.source.fetch(
        'SELECT "table", operation, id, who FROM oracle.notes ORDER BY n'
    )
    hidden = {script.EXCLUDED_TABLE} if world.excluding else set()
    noted = [
        (row["table"], row["operation"], row["id"], row["who"])
        for row in rows
        if row["table"] not in hidden
    ]
    try:
        kept = await world.trail.fetch(
            "SELECT \"table\", operation, coalesce(after ->> 'id', before ->> 'id') AS id, "
            "(context ->> 'user_id')::int AS user_id FROM changes ORDER BY position, ordinal"
        )
    except asyncpg.UndefinedTableError as error:
        return [str(error)]
    given = [
        (
            row["table"],
            {"CREATE": "INSERT"}.get(row["operation"], row["operation"]),
            row["id"],
            row["user_id"],
        )
        for row in kept
    ]
    # Each source's is in order; ordinals of one transaction are counted by each source for itself.
    for tables in _groups(world):
        wanted = [row for row in noted if row[0] in tables]
        found += _first_difference(wanted, [row for row in given if row[0] in tables])
    gaps = await world.trail.fetchval("SELECT count(*) FROM headrace_audit_gaps")
    return found + ([f"{gaps} gaps"] if gaps else [])


async def _archive(world: World) -> list[str]:
    """All files by pyarrow, in the order of their names."""
    second = {"things"} if world.combination["sources"] == "two" else set()
    noted = [change for change in await _noted(world) if change[0] not in second]
    found: list[str] = []
    given: list[Change] = []
    gaps = 0
    for file in sorted(world.archive.glob("*.parquet")):
        for row in pq.read_table(file, columns=["table", "operation", "key", "after"]).to_pylist():
            gaps += row["operation"] == "gap"
            operation = row["operation"].upper()
            if operation in _ROWS:
                row_json = row["after"] if operation != "DELETE" else row["key"]
                key = (
                    json.loads(row_json).get("id") if operation != "TRUNCATE" and row_json else None
                )
                given.append((row["table"], operation, None if key is None else str(key)))
    if noted != given:
        found += _first_difference(noted, given)
    return found + ([f"{gaps} gaps"] if gaps else [])
