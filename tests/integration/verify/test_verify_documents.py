"""`headrace verify --sink` compares OpenSearch with the source while both move, names document and
field, and writes the documents that differ. The oracle for documents is a plain HTTP client.
"""

from __future__ import annotations

import asyncio
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
from tests.support.meanwhile import written_meanwhile
from tests.support.opensearch_reading import Reader
from tests.support.sinks import sink_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SERVICES = ("wal-reader", "publisher", "schema-publisher", "snapshot-responder")
ROWS = 1200
ODD = "public.odd=20=25s"
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
MORE = """INSERT INTO "odd %s" VALUES (7, 'later', '4', '5')"""
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


# The load leaves these rows alone: a change that is on its way would repair what a test damages.
STILL = "id < 101"


def load(number: int) -> str:
    return (
        f"UPDATE things SET name = 'w {number}' WHERE id % 50 = {number % 50} AND NOT {STILL};"
        f"DELETE FROM things WHERE id = {number + 200};"
        f"INSERT INTO things (id, name) VALUES ({number + 5000}, 'new'), (200000 + {number}, 'x')"
    )


async def test_every_difference_is_named_by_document_and_field_and_repaired_while_both_sides_move(
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

            async with written_meanwhile(database, load):
                code, found = await verify()
                assert code == 0, found
            assert sink.running

            before = still_documents(reader)
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

            async with written_meanwhile(database, load, 20_000):
                code, found = await verify("--repair")
            repaired = {token: one["repaired"] for token, one in found.items()}
            assert (code, repaired) == (0, {"things": 5, odd["table"]: 1}), found
            # Every field is what the sink itself had written.
            assert still_documents(reader) == before
            await is_followed(database, reader)

            # Documents from before it lack the field, which stands for NULL.
            await database.execute(f'ALTER TABLE "odd %s" ADD later text; {MORE}')
            code, found = await verify("--table", '"odd %s"')
            assert code == 0, found
        # It can't be compared at this LSN.
        await database.execute("UPDATE things SET name = 'late' WHERE id = 1")
        code, said = await verify("--wait", "5", "--table", "things")
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
    (document,) = (one for one in reader.rows(ODD) if "NaN" in one)
    assert document == '["NaN","a"]'
    path = f"/{quote(ODD)}/_update/{quote(document)}?refresh=true"
    reader.ask("POST", path, {"doc": {"v": "x"}})


def still_documents(reader: Reader) -> dict[str, dict[str, Any]]:
    """The documents of rows that the load leaves alone."""
    things = {one["_id"]: one for one in reader.every_hit("public.things")}
    odd = {one["_id"]: one for one in reader.every_hit(ODD)}
    documents = {**things, **odd}
    return {
        name: one["_source"] for name, one in documents.items() if one["_source"].get("id", 0) < 101
    }


async def is_followed(database: Database, reader: Reader) -> None:
    """Changes that follow replace what a repair wrote."""
    await database.execute("UPDATE things SET name = 'again' WHERE id IN (7, 10)")
    await database.execute("DELETE FROM things WHERE id = 8")
    wanted = {"7": "again", "8": None, "10": "again"}
    async with asyncio.timeout(60):
        while True:
            rows = {one["_id"]: one["_source"]["name"] for one in reader.every_hit("public.things")}
            if {document: rows.get(document) for document in wanted} == wanted:
                return
            await asyncio.sleep(0.2)


def differences(verdict: dict[str, Any]) -> set[tuple[str, str, tuple[str, ...]]]:
    return {(one["what"], one["key"][0], tuple(one["columns"])) for one in verdict["found"]}
