"""`headrace verify --sink` compares OpenSearch with the source while both move, and names document
and field. The oracle for documents is a plain HTTP client.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from headrace.testing.database import Database
from headrace.testing.opensearch import OpenSearchServer
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.process import command
from headrace.testing.suite import Suite
from tests.support.exactly_once import environment
from tests.support.opensearch_reading import Reader
from tests.support.sinks import sink_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SERVICES = ("wal-reader", "publisher", "schema-publisher", "snapshot-responder")
ROWS = 1200
TABLES = f"""
CREATE TABLE things (id int PRIMARY KEY, name text, price numeric(9, 2), whole numeric, size float8,
    small real, at timestamptz, day date, bits bit(3), data bytea, tags text[], doc jsonb,
    plain json, spot point, active boolean, uid uuid, span interval, hidden text);
CREATE TABLE "odd %s" ("i.d" float8, "_k" text, v text, PRIMARY KEY ("i.d", "_k"));
INSERT INTO things SELECT g, E'it''s "\\\\ ' || g, g / 3.0, g * 1e20, g / 3.0, g / 3.0,
    '2026-01-01Z'::timestamptz + g * interval '1.5 s', '2026-01-01'::date + g, '101',
    decode(md5(g::text), 'hex'), ARRAY['a"b', NULL, g::text], '{{"a": 1.50, "b": [1e2, null]}}',
    '{{ "b" : 12345678901234567890.5 }}', point(g, 1), g % 2 = 0, md5(g::text)::uuid, '1 day 2 s', 'x'
    FROM generate_series(1, {ROWS}) g;
INSERT INTO things (id, size, small, at, day, doc, plain) VALUES
    (-1, 'NaN', '-Infinity', 'infinity', '0044-03-15 BC', 'null', '"text"'), (-2, '-0', 1e-30, NULL,
    NULL, '"text"', 'null'), (-3, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO "odd %s" VALUES ('NaN', 'a', '1'), ('Infinity', '["', '2'), (0.1, '', NULL);
"""
CONFIG = """[[sink]]
name = "compared"
to = "opensearch://127.0.0.1:{port}"
tables = ["things", "odd %s"]
columns = {{things = [{columns}]}}
where = {{things = [["id", "<", 100000]]}}
snapshot = "initial"
options = {{replicas = 0}}

[[sink]]
name = "files"
to = "file://{folder}"
"""
COLUMNS = [
    "name",
    "price",
    "whole",
    "size",
    "small",
    "at",
    "day",
    "bits",
    "data",
    "tags",
    "doc",
    "plain",
    "spot",
    "active",
    "uid",
    "span",
]


async def write_until_cancelled(database: Database) -> None:
    for number in range(10_000):
        await database.execute(
            f"UPDATE things SET name = 'w {number}' WHERE id % 50 = {number % 50};"
            f"DELETE FROM things WHERE id = {number + 200};"
            f"INSERT INTO things (id, name) VALUES ({number + 5000}, 'new'), (200000 + {number}, 'x')"
        )
        await asyncio.sleep(0.1)


async def test_every_difference_is_named_by_document_and_field_while_both_sides_move(
    own_postgres: OwnPostgres, own_nats: OwnNats, opensearch: OpenSearchServer, tmp_path: Path
) -> None:
    postgres, nats = await own_postgres(), await own_nats()
    database, reader = Database(postgres, "postgres"), Reader(opensearch)
    await database.execute(f"{TABLES}; CREATE PUBLICATION headrace FOR ALL TABLES")
    settings = {**environment(postgres, nats, "event"), "HEADRACE_CATALOG_INTERVAL_S": "1"}
    config = tmp_path / "headrace.toml"
    columns = ", ".join(f'"{name}"' for name in COLUMNS)
    config.write_text(CONFIG.format(port=opensearch.port, columns=columns, folder=tmp_path))

    async def verify(*options: str, sink: str = "compared") -> tuple[int, Any]:
        words = ("verify", "--sink", sink, "--config", str(config), "--wait", "60", *options)
        done = await command(settings, *words, "--json")
        found = [json.loads(line) for line in done.out.splitlines()]
        return done.code, {one["table"]: one for one in found} or done.err

    async with Suite(settings, tmp_path, SERVICES) as suite:
        await suite.logged("schema-publisher", "table=public.things ")
        async with sink_process(settings, config, "compared") as sink:
            await sink.logged("event=sink_follows", 120)
            code, found = await verify()
            assert code == 0, found
            assert sorted(one["rows"] for one in found.values()) == [3, ROWS + 3]

            writing = asyncio.create_task(write_until_cancelled(database), name="writing")
            try:
                code, found = await verify()
                assert code == 0, found
            finally:
                writing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await writing
            assert sink.running

            await asyncio.to_thread(damage, reader)
            code, found = await verify()
            assert code == 3
            (odd,) = (one for token, one in found.items() if token != "things")
            assert differences(found["things"]) == {
                ("changed", "7", ("name",)),
                ("changed", "8", ("price", "data")),
                ("changed", "9", ("size",)),
                ("missing", "10", ()),
                ("extra", "99999", ()),
            }
            assert differences(odd) == {("changed", '["NaN","a"]', ("v",))}
            # The documents are what an HTTP client made of them.
            assert reader.rows("public.things")["7"]["name"] == "damaged"
            assert "10" not in reader.rows("public.things")

            code, said = await verify("--repair")
            assert (code, "does not write documents" in said) == (1, True)
        # It can't be compared at this LSN.
        await database.execute("UPDATE things SET name = 'late' WHERE id = 1")
        code, said = await verify("--wait", "1", "--table", "things")
        assert (code, "the sink compared did not reach" in said) == (1, True), said
        code, said = await verify(sink="files")
        assert (code, "keeps records" in said) == (1, True), said
        done = await command(settings, "verify", "--to", "sqlite:///x", "--sink", "compared")
        assert (done.code, "--to or --sink" in done.err) == (2, True)
    await database.close()


def damage(reader: Reader) -> None:
    """Change documents, as another program would."""
    for document, fields in (
        ("7", {"name": "damaged"}),
        ("8", {"price": "0.01", "data": "AA=="}),
        ("9", {"size": "three"}),
    ):
        reader.ask("POST", f"/public.things/_update/{document}", {"doc": fields})
    reader.ask("DELETE", "/public.things/_doc/10")
    extra = {"id": 99999, "name": "extra"}
    reader.ask("PUT", "/public.things/_doc/99999?refresh=true", extra)
    odd = "public.odd=20=25s"
    (document,) = (one for one in reader.rows(odd) if "NaN" in one)
    assert document == '["NaN","a"]'
    path = f"/{quote(odd)}/_update/{quote(document)}?refresh=true"
    reader.ask("POST", path, {"doc": {"v": "x"}})


def differences(verdict: dict[str, Any]) -> set[tuple[str, str, tuple[str, ...]]]:
    return {(one["what"], one["key"][0], tuple(one["columns"])) for one in verdict["found"]}
