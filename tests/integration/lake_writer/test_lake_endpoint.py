"""The Iceberg REST endpoint: what PyIceberg and DuckDB read through it, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
from aiohttp import web
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    NoSuchNamespaceError,
    NoSuchTableError,
    UnauthorizedError,
)

from headrace.embedded.ports import LOOPBACK
from headrace.lake.catalog import TableName
from headrace.lake_writer.endpoint import Endpoint
from headrace.process.health import Health, application, serving
from headrace.settings import load
from tests.oracle.lake import connect
from tests.support.local_lake import NUMBERS, LocalLake

DOTTED = TableName("a.b", "odd/name é")
TOKEN = "lake-token"


@pytest.fixture
def lake(tmp_path: Path) -> LocalLake:
    made = LocalLake(tmp_path)
    made.create(rows=5)
    made.create(DOTTED, rows=2)
    made.delete([3])
    made.cut()
    made.update([1], "changed")
    made.cut()
    return made


async def served(folder: Path, **more: str) -> AsyncIterator[str]:
    settings = load({"HEADRACE_LAKE_URL": f"file://{folder}", **more})
    app = application(Health("lake-writer"), "headrace")
    Endpoint(settings).extend(app)
    async with serving(app, LOOPBACK, 0) as port:
        yield f"http://{LOOPBACK}:{port}/iceberg"


@pytest.fixture
async def url(lake: LocalLake) -> AsyncIterator[str]:
    """The endpoint of a lake, on this machine."""
    async for address in served(lake.folder):
        yield address


@pytest.fixture
async def closed_url(lake: LocalLake) -> AsyncIterator[str]:
    """The endpoint of a lake, for clients with a token."""
    async for address in served(lake.folder, HEADRACE_LAKE_TOKEN=TOKEN):
        yield address


async def ask(
    url: str, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{url}/v1/{path}", headers=headers) as answer,
    ):
        body = await answer.read()
        return answer.status, await answer.json() if body else None


async def test_pyiceberg_reads_the_last_cut_through_the_endpoint(lake: LocalLake, url: str) -> None:
    def read() -> None:
        catalog = RestCatalog("headrace", uri=url)
        assert sorted(catalog.list_namespaces()) == [("a.b",), ("public",)]
        assert catalog.list_tables("public") == [("public", "numbers")]
        assert catalog.namespace_exists("public")
        assert not catalog.namespace_exists("none")
        assert catalog.table_exists("public.numbers")
        assert not catalog.table_exists("public.none")
        with pytest.raises(NoSuchTableError):
            catalog.load_table("public.none")
        with pytest.raises(NoSuchNamespaceError):
            catalog.list_tables("none")
        table = catalog.load_table("public.numbers")
        rows = table.scan().to_arrow().select(["id", "note"]).to_pylist()
        assert sorted((row["id"], row["note"]) for row in rows) == [
            (0, "note 0"),
            (1, "changed"),
            (2, "note 2"),
            (4, "note 4"),
        ]
        # A schema's name with a dot is one level, and found by its levels, too.
        for name in (("a.b", DOTTED.name), ("a", "b", DOTTED.name)):
            assert catalog.load_table(name).scan().to_arrow().num_rows == 2
        lake.insert([10])
        lake.cut()
        assert catalog.load_table("public.numbers").scan().to_arrow().num_rows == 5

    await asyncio.to_thread(read)


async def test_duckdb_reads_the_last_cut_through_the_endpoint(url: str) -> None:
    def read() -> list[Any]:
        database = connect("httpfs")
        database.execute(
            f"ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT '{url}', AUTHORIZATION_TYPE 'none')"
        )
        return database.execute("SELECT id, note FROM lake.public.numbers ORDER BY id").fetchall()

    assert await asyncio.to_thread(read) == [
        (0, "note 0"),
        (1, "changed"),
        (2, "note 2"),
        (4, "note 4"),
    ]


async def test_names_come_in_pages(lake: LocalLake, url: str) -> None:
    for name in ("c", "a", "b"):
        await asyncio.to_thread(lake.create, TableName("public", name))
    found: list[str] = []
    token: str | None = ""
    while token is not None:
        status, body = await ask(url, f"namespaces/public/tables?pageSize=2&pageToken={token}")
        assert status == 200
        assert len(body["identifiers"]) <= 2
        found += [each["name"] for each in body["identifiers"]]
        token = body["next-page-token"]
    assert found == ["a", "b", "c", NUMBERS.name]
    for wrong in ("0", "-1", "x", "²"):
        status, body = await ask(url, f"namespaces?pageSize={wrong}")
        assert (status, body["error"]["code"]) == (400, 400)
    assert await ask(url, "namespaces?parent=public") == (
        200,
        {"namespaces": [], "next-page-token": None},
    )
    assert (await ask(url, "namespaces?parent=none"))[0] == 404


async def test_snapshots_can_be_limited_to_those_that_a_branch_names(
    lake: LocalLake, url: str
) -> None:
    _, every = await ask(url, "namespaces/public/tables/numbers?snapshots=all")
    _, named = await ask(url, "namespaces/public/tables/numbers?snapshots=refs")
    assert len(every["metadata"]["snapshots"]) == 3
    current = every["metadata"]["current-snapshot-id"]
    assert [each["snapshot-id"] for each in named["metadata"]["snapshots"]] == [current]
    assert every["metadata-location"] == lake.catalog.tables()[NUMBERS]
    assert every["config"] == {}


async def test_what_can_not_be_answered_is_an_error_of_icebergs_form(url: str) -> None:
    for method, path, status, kind in (
        ("GET", "namespaces/none", 404, "NoSuchNamespaceException"),
        ("GET", "namespaces/public/tables/none", 404, "NoSuchTableException"),
        ("GET", "namespaces/public/views", 404, "NotFoundException"),
        ("POST", "namespaces", 406, "UnsupportedOperationException"),
        ("POST", "namespaces/public/tables", 406, "UnsupportedOperationException"),
        ("POST", "namespaces/public/tables/numbers", 406, "UnsupportedOperationException"),
        ("DELETE", "namespaces/public/tables/numbers", 406, "UnsupportedOperationException"),
        ("POST", "transactions/commit", 406, "UnsupportedOperationException"),
        ("POST", "oauth/tokens", 406, "UnsupportedOperationException"),
    ):
        found, body = await ask(url, path, method)
        assert (found, body["error"]["type"], body["error"]["code"]) == (status, kind, status), path
        assert body["error"]["message"]
    for path, status in (("public/tables/numbers", 204), ("public", 204), ("none", 404)):
        assert (await ask(url, f"namespaces/{path}", "HEAD"))[0] == status
    status, config = await ask(url, "config?warehouse=any")
    assert status == 200
    assert all(entry.split()[0] in {"GET", "HEAD"} for entry in config["endpoints"])


async def test_a_table_of_another_program_is_not_served(lake: LocalLake, url: str) -> None:
    def foreign() -> None:
        catalog = SqlCatalog("headrace", uri=f"sqlite:///{lake.folder}/catalog.db")
        place = f"file://{lake.folder}-elsewhere"
        catalog.create_table("public.foreign", pa.schema([pa.field("a", pa.int64())]), place)
        catalog.close()

    await asyncio.to_thread(foreign)
    assert TableName("public", "foreign") in await asyncio.to_thread(lake.catalog.tables)
    assert (await ask(url, "namespaces/public/tables/foreign"))[0] == 404


async def test_a_lake_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    async for url in served(tmp_path / "empty"):
        status, body = await ask(url, "namespaces")
        assert (status, body["error"]["type"]) == (503, "ServiceUnavailableException")


async def test_only_clients_with_the_token_are_answered(closed_url: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
        for path in ("config", "namespaces", "namespaces/public/tables/numbers", "none"):
            status, body = await ask(closed_url, path, headers=headers)
            assert (status, body["error"]["type"]) == (401, "NotAuthorizedException")

    def read() -> None:
        with pytest.raises(UnauthorizedError):
            RestCatalog("headrace", uri=closed_url)
        catalog = RestCatalog("headrace", uri=closed_url, token=TOKEN)
        assert catalog.load_table("public.numbers").scan().to_arrow().num_rows == 4

    await asyncio.to_thread(read)


async def test_without_a_token_only_this_machine_is_answered(url: str) -> None:
    for headers in ({"Host": "lake.example"}, {"Sec-Fetch-Site": "cross-site"}):
        status, body = await ask(url, "config", headers=headers)
        assert (status, body["error"]["type"]) == (403, "ForbiddenException")


async def test_without_a_token_an_open_port_answers_nobody(lake: LocalLake) -> None:
    url = f"file://{lake.folder}"
    settings = load({"HEADRACE_LAKE_URL": url, "HEADRACE_HTTP_HOST": "192.0.2.1"})
    app = web.Application()
    Endpoint(settings).extend(app)
    async with serving(app, LOOPBACK, 0) as port:
        assert (await ask(f"http://{LOOPBACK}:{port}/iceberg", "config"))[0] == 403
