"""A consumer of Debezium's JSON reads the envelope: Debezium's own deserializer, on what a sink has
written of a database's changes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import Suite
from tests.support.debezium_consumer import Envelope, consumed
from tests.support.exactly_once import environment, prepare
from tests.support.sinks import lines_of, sink_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
WAIT_S = 120.0
UNAVAILABLE = "__debezium_unavailable_value"
TABLE = """
CREATE TABLE shop (
    id bigint PRIMARY KEY, price numeric(20, 4), name text, at timestamptz, day date, flag boolean,
    ratio float8, doc jsonb, raw bytea, large text
)"""
CHANGES = (
    """INSERT INTO shop VALUES (9007199254740993, 1.5000, 'é "quoted"', '2026-01-02 03:04:05.678+00',
       '2026-01-02', true, 0.1, '{"a": [1, null]}', '\\x00ff', repeat('0123456789', 10000))""",
    "INSERT INTO shop (id, ratio) VALUES (2, 'NaN'), (3, 'Infinity'), (4, -0.5)",
    "UPDATE shop SET name = 'changed' WHERE id = 9007199254740993",
    "UPDATE shop SET id = 5 WHERE id = 4",
    "DELETE FROM shop WHERE id = 3",
)
# By SQL, in the form that the envelope has.
ROWS = """
SELECT id, price::text, name, to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS at,
       day::text, flag, CASE WHEN ratio IN ('NaN', 'Infinity') THEN to_jsonb(ratio::text)
       ELSE to_jsonb(ratio) END::text AS ratio, doc::text, encode(raw, 'base64') AS raw, encode(sha256(large::bytea), 'hex')
       AS large FROM shop ORDER BY id"""


def folded(envelopes: Iterable[Envelope]) -> dict[int, dict[str, Any]]:
    """The rows, as a consumer of Debezium's changes keeps them."""
    rows: dict[int, dict[str, Any]] = {}
    for one in envelopes:
        if one.table != "shop":
            continue
        match one.op:
            case "c" | "r" | "u":
                assert one.after is not None
                known = rows.get(one.after["id"], {})
                given = {name: value for name, value in one.after.items() if value != UNAVAILABLE}
                rows[one.after["id"]] = {**known, **given}
            case "d":
                assert one.before is not None
                del rows[one.before["id"]]
    return rows


def ended(folder: Path) -> bool:
    """Whether the last change has arrived."""
    return any(b'"op":"d"' in line and b'"id":3' in line for line in lines_of(folder))


async def test_debeziums_deserializer_reads_what_the_source_has(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    postgres, server = await own_postgres(), await own_nats()
    database, _ = await prepare(postgres)
    await database.execute(TABLE)
    folder = tmp_path / "changes"
    folder.mkdir()
    config = tmp_path / "headrace.toml"
    config.write_text(
        f'[[sink]]\nname = "files"\nto = "{folder.as_uri()}"\nformat = "debezium"\n'
        "batch = {wait_ms = 50}\n"
    )
    settings = environment(postgres, server, "event")
    async with Suite(settings, tmp_path) as suite:
        await suite.logged("wal-reader", "epoch_opened")
        async with sink_process(settings, config, "files"):
            for change in CHANGES:
                await database.execute(change)
            async with asyncio.timeout(WAIT_S):
                while not ended(folder):  # noqa: ASYNC110  # another process
                    await asyncio.sleep(0.1)
    envelopes = await asyncio.to_thread(consumed, lines_of(folder))
    wanted = [dict(row) for row in await database.fetch(ROWS)]
    await database.close()
    # The changed key is a delete of the old one and an update, which lacks the unchanged value.
    assert {"c", "u", "d"} <= {one.op for one in envelopes}
    found = [row for _, row in sorted(folded(envelopes).items())]
    assert [_comparable(row) for row in found] == wanted


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    large = row["large"]
    return {
        **row,
        **{name: json.dumps(row[name]) for name in ("ratio", "doc") if row[name] is not None},
        **({} if large is None else {"large": hashlib.sha256(large.encode()).hexdigest()}),
    }
