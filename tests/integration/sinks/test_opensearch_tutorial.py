"""The first minute of docs/sinks-opensearch.md, as it is written: rows that exist and changes."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.testing.database import Database
from headrace.testing.opensearch import OpenSearchServer
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import Suite
from tests.support.exactly_once import environment
from tests.support.sinks import sink_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PAGE = Path(__file__).parents[3] / "docs/sinks-opensearch.md"
SERVICES = ("wal-reader", "publisher", "schema-publisher", "snapshot-responder")
WAIT_S = 120.0


async def said(command: str, folder: Path) -> Any:
    """The output of a command of the page, as JSON if it is that."""
    shell = await asyncio.create_subprocess_shell(
        command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    output, _ = await shell.communicate()
    return json.loads(output) if output else {}


async def test_the_first_minute(
    own_postgres: OwnPostgres, own_nats: OwnNats, opensearch: OpenSearchServer, tmp_path: Path
) -> None:
    (block,) = re.findall(r"## First minute\n\n```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = block.replace("localhost:9200", f"localhost:{opensearch.port}")
    configure, row, search = re.split(r"headrace sink search\n|\n(?=curl [^\n]*_search)", commands)
    postgres, nats = await own_postgres(), await own_nats()
    database = Database(postgres, "postgres")
    await database.execute(
        "CREATE TABLE products (id int PRIMARY KEY, name text, price numeric);"
        "INSERT INTO products VALUES (7, 'a lamp', 19.90), (8, 'a chair', 5);"
        "CREATE PUBLICATION headrace FOR ALL TABLES"
    )
    await said(configure, tmp_path)
    settings = environment(postgres, nats, "event")
    config = tmp_path / "headrace.toml"
    async with Suite(settings, tmp_path, SERVICES) as suite:
        await suite.logged("schema-publisher", "table=public.products ")
        async with sink_process(settings, config, "search") as sink:
            await sink.logged("event=sink_follows")
            found = await said(row, tmp_path)
            assert found["_source"] == {"id": 7, "name": "a lamp", "price": "19.90"}
            await database.execute("INSERT INTO products VALUES (9, 'another lamp', 1e3)")
            async with asyncio.timeout(WAIT_S):
                hits: list[Any] = []
                while len(hits) < 2:
                    await asyncio.sleep(0.2)
                    hits = (await said(search, tmp_path)).get("hits", {}).get("hits", [])
            assert sorted(hit["_id"] for hit in hits) == ["7", "9"]
    await database.close()
