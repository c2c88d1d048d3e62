"""The published tables: their structure from the schemas bucket, their traffic from the publisher,
their size from PostgreSQL's catalog.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

import asyncpg
from nats.js.errors import NoKeysError, NotFoundError

from headrace.console.cells import change_sentences
from headrace.console.last_known import LastKnown, stamp
from headrace.console.problem import not_found
from headrace.console.reading import EventReader
from headrace.console.search import begin_of
from headrace.console.suite_view import SuiteView
from headrace.contract.events import decode
from headrace.contract.subjects_and_ids import schema_subject, split_table_token, table_token
from headrace.postgres import connection
from headrace.settings import Settings

SIZES_S = 15.0
SCHEMAS_S = 2.0
VERSIONS_MAX = 50
TABLES_MAX = 10_000
# As pg_class.relreplident has them.
_IDENTITIES = {"d": "default", "n": "nothing", "f": "full", "i": "index"}
_SIZES = """
SELECT n.nspname AS schema, c.relname AS name, c.reltuples::float8 AS rows,
       pg_total_relation_size(c.oid)::int8 AS bytes
FROM pg_publication_tables t
JOIN pg_namespace n ON n.nspname = t.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE t.pubname = $1
"""
Sizes = dict[str, tuple[int | None, int]]


class Tables:
    def __init__(self, settings: Settings, reader: EventReader, suite: SuiteView) -> None:
        self._settings = settings
        self._reader = reader
        self._suite = suite
        self._sizes: LastKnown[Sizes] = LastKnown("postgres", self._read_sizes, SIZES_S)
        self._schemas: LastKnown[dict[str, dict[str, Any]]] = LastKnown(
            "schemas", self._read_schemas, SCHEMAS_S
        )

    async def page(self, query: Mapping[str, str], limit: int) -> dict[str, Any]:
        """The tables whose name fits, sorted."""
        lines = await self._lines()
        part = query.get("q", "").casefold()
        found = [one for one in lines if part in f"{one['schema']}.{one['table']}".casefold()]
        if query.get("sort") == "events":
            found.sort(key=lambda one: -int(one["events"]))
        # By number: tables come and go rarely, and a page that is off by one does no harm.
        begin = begin_of(query)
        following = None
        if begin + limit < len(found):
            following = str(begin + limit)
        return {**self._head(), "items": found[begin : begin + limit], "next": following}

    async def one(self, token: str) -> dict[str, Any]:
        """A table with its columns."""
        schema = await self._schema(token)
        sizes = await self._sizes.current() or {}
        line = self._line(token, schema, sizes)
        latest = await self._latest(token)
        return {
            **self._head(),
            "table": {**line, **latest},
            "columns": _columns(schema),
            "replica_identity": _IDENTITIES.get(str(schema.get("replica_identity"))),
        }

    async def versions(self, token: str) -> dict[str, Any]:
        """The structures that the stream still has, the newest first, and the bucket's."""
        current = await self._schema(token)
        seq = 0
        found: deque[dict[str, Any]] = deque(maxlen=VERSIONS_MAX)
        # By subject, so JetStream skips the messages in between: each request finds a schema event.
        while True:
            message = await self._reader.message(seq + 1, schema_subject(token))
            if message is None:
                break
            seq = int(message.seq or 0)
            events = await self._reader.decoded(message.data or b"", message.subject or "", seq)
            found.extend(_version(event.payload, str(event.position)) for event in events)
        # A version may be published again after a recovery.
        # The bucket may be ahead of the stream: the catalog changes before the next row comes.
        by_number = {one["version"]: one for one in found}
        newest = max(by_number, default=0)
        if newest < int(current["version"]):
            by_number[int(current["version"])] = _version(current, None)
        items = [by_number[number] for number in sorted(by_number, reverse=True)]
        items[0]["current"] = True
        return {**self._suite.head(), "items": items}

    async def tokens(self) -> list[str]:
        """The tokens of the published tables."""
        return sorted(await self._schemas.current() or {})

    async def estimate(self, token: str) -> tuple[int | None, int | None]:
        """PostgreSQL's estimate of rows, and the bytes of the table."""
        await self._schema(token)
        sizes = await self._sizes.current() or {}
        return sizes.get(token, (None, None))

    async def _schema(self, token: str) -> dict[str, Any]:
        schemas = await self._schemas.current() or {}
        if token not in schemas:
            raise not_found(f"No published table has the token {token!r}.")
        return schemas[token]

    def _head(self) -> dict[str, Any]:
        head = self._suite.head()
        # The suite may have named a part already, with its own reason.
        stale = {one["part"] for one in head["stale"]}
        more = [
            one
            for known in (self._sizes, self._schemas)
            for one in known.stale()
            if one["part"] not in stale
        ]
        return {"as_of": head["as_of"], "stale": [*head["stale"], *more]}

    async def _lines(self) -> list[dict[str, Any]]:
        schemas, sizes = await asyncio.gather(self._schemas.current(), self._sizes.current())
        return [
            self._line(token, schema, sizes or {})
            for token, schema in sorted((schemas or {}).items())
        ]

    def _line(self, token: str, schema: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
        # Of this publisher's process; the stream itself has no counts by table.
        counts, per_second = self._suite.traffic(token)
        return _line(token, schema, counts, per_second, sizes.get(token, (None, None)))

    async def _latest(self, token: str) -> dict[str, Any]:
        """When the table changed last, if the stream still has that."""
        js = self._reader.client.jetstream()
        latest: dict[str, Any] = {}
        # Without `schema`: a change of the structure is no change of the rows.
        for operation in ("insert", "update", "delete", "truncate", "batch"):
            try:
                message = await js.get_last_msg(
                    self._settings.streams.cdc, f"cdc.{token}.{operation}"
                )
            except NotFoundError:
                continue
            seq = int(message.seq or 0)
            events = await self._reader.decoded(message.data or b"", message.subject or "", seq)
            # An array's last event is its latest: events in a message are in commit order.
            if events and seq > latest.get("seq", 0):
                at = (events[-1].payload.get("tx") or {}).get("ts")
                position = str(events[-1].position)
                latest = {"seq": seq, "last_change": at, "last_position": position}
        latest.pop("seq", None)
        return latest

    async def _read_schemas(self) -> dict[str, dict[str, Any]]:
        bucket = await self._reader.client.jetstream().key_value(self._settings.streams.schemas)
        try:
            keys = await bucket.keys()
        except NoKeysError:
            # A new suite: its first table has not been published yet.
            return {}
        found = {}
        for key in keys[:TABLES_MAX]:
            try:
                entry = await bucket.get(key)
            # A table may be dropped meanwhile.
            except NotFoundError:
                continue
            schema = decode(entry.value or b"")
            # Several suites may share the bucket.
            if schema.get("source") in {None, self._settings.source.slot}:
                found[key] = schema
        return found

    async def _read_sizes(self) -> Sizes:
        # A connection for each reading, four a minute: nothing is open while nobody looks.
        session: asyncpg.Connection = await connection.connect(
            self._settings.postgres, "headrace console"
        )
        try:
            rows = await session.fetch(_SIZES, self._settings.source.publication)
        finally:
            # `close` would wait for a server that may not answer.
            session.terminate()
        return {
            # -1: never analyzed.
            table_token(row["schema"], row["name"]): (
                int(row["rows"]) if row["rows"] >= 0 else None,
                int(row["bytes"]),
            )
            for row in rows
        }


def _line(
    token: str,
    schema: Mapping[str, Any],
    counts: Mapping[str, int],
    per_second: float | None,
    size: tuple[int | None, int | None],
) -> dict[str, Any]:
    # The token is one-to-one with the name, which the bucket writes with a dot.
    owner, name = split_table_token(token)
    rows, total = size
    # Messages with events of several operations are counted as a whole.
    known = "batch" not in counts
    by_operation = {
        name: str(counts.get(operation, 0)) if known else None
        for name, operation in (
            ("inserts", "insert"),
            ("updates", "update"),
            ("deletes", "delete"),
            ("truncates", "truncate"),
        )
    }
    return {
        "token": token,
        "schema": owner,
        "table": name,
        "events": str(sum(counts.values())),
        **by_operation,
        "events_per_s": per_second,
        "schema_version": int(schema["version"]),
        "last_change": None,
        "last_position": None,
        "columns": len(schema["columns"]),
        "primary_key": list(schema["primary_key"]),
        "rows_estimated": None if rows is None else str(rows),
        "bytes": None if total is None else str(total),
    }


def _columns(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    keys = set(schema["primary_key"])
    return [
        {
            "name": column["name"],
            "type": column["data_type"],
            "nullable": bool(column["is_nullable"]),
            "default": column["column_default"],
            "key": column["name"] in keys,
        }
        for column in schema["columns"]
    ]


def _version(payload: Mapping[str, Any], position: str | None) -> dict[str, Any]:
    at = (payload.get("tx") or {}).get("ts")
    if position is None and "timestamp" in payload:
        at = stamp(float(payload["timestamp"]))
    return {
        "version": int(payload["version"]),
        "position": position,
        "at": at,
        "current": False,
        "columns": _columns(payload),
        "primary_key": list(payload["primary_key"]),
        "changes": change_sentences(payload),
        "resync": bool(payload.get("resync")),
    }
