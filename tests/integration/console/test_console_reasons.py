"""A reason that quotes a row's value is shown to nobody who may not see all values."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import nats
import pytest
import pytest_asyncio

from headrace.testing.database import fresh_database
from headrace.testing.line import Line, running_line
from headrace.testing.names import Names
from headrace.testing.servers import SessionServers
from tests.support.console_api import Console, running_console

pytestmark = pytest.mark.asyncio(loop_scope="module")
WAIT_S = 60.0
CANARY = "canary-in-the-words-of-a-target"
# The reasons of a service that reaches its servers, and is refused a row.
REASONS = {"target": f"Key (mail)=({CANARY}) already exists.", "nats": "NATS is disconnected"}
ACCESS = """[[access]]
name = "admin"
role = "admin"
token_sha256 = "{admin}"
values = ["*"]
[[access]]
name = "clerk"
role = "operator"
token_sha256 = "{clerk}"
values = ["public.*"]
[[access]]
name = "viewer"
role = "viewer"
token_sha256 = "{viewer}"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def line(
    session_servers: SessionServers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Line]:
    server = session_servers.new_nats()
    await server.start()
    postgres = session_servers.shared_postgres(18)
    folder = tmp_path_factory.mktemp("line")
    try:
        async with (
            fresh_database(postgres, Names.new().other("db")) as database,
            running_line(database, server, folder, {}) as line,
        ):
            yield line
    finally:
        session_servers.discard(server)


@pytest_asyncio.fixture(loop_scope="module")
async def reporting(line: Line) -> AsyncIterator[None]:
    """Services that report these reasons once a second, as processes do."""
    client = await nats.connect(line.nats_url)

    async def report() -> None:
        body = {"stats": {"ready": 0}, "reasons": REASONS, "instance": "one"}
        while True:
            for service in ("sink-shop", "lake-writer", "audit-writer", "snapshot-responder"):
                subject = f"headrace.{line.source}.stats.{service}"
                await client.publish(subject, msgpack.packb(body))
            await asyncio.sleep(0.5)

    task = asyncio.create_task(report())
    yield
    task.cancel()
    await client.close()


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


async def everything(console: Console, user: str) -> str:
    """Each answer that names services, as this user gets it."""
    found: list[Any] = []
    for path in ("/overview", "/services", "/sinks", "/waterline", "/doctor"):
        status, body = await console.get(path, **bearer(user))
        assert status == 200, body
        found.append(body)
    found += await console.frames("topics=overview", 2, **bearer(user))
    return str(found)


async def heard(console: Console) -> None:
    """Wait until the console knows all four services."""
    async with asyncio.timeout(WAIT_S):
        while True:
            _, body = await console.get("/services", **bearer("admin"))
            listed = {one["name"] for one in body["items"]}
            if {"sink-shop", "lake-writer", "audit-writer", "snapshot-responder"} <= listed:
                return
            await asyncio.sleep(0.1)


def access_file(folder: Path) -> str:
    file = folder / "access.toml"
    users = ("admin", "clerk", "viewer")
    hashes = {name: hashlib.sha256(name.encode()).hexdigest() for name in users}
    file.write_text(ACCESS.format(**hashes))
    return str(file)


@pytest.mark.usefixtures("reporting")
async def test_a_value_in_a_reason_takes_the_right_to_all_values(
    line: Line, tmp_path: Path
) -> None:
    given = {"HEADRACE_CONSOLE_ACCESS_FILE": access_file(tmp_path)}
    async with running_console(line.suite, **given) as console:
        await heard(console)
        assert CANARY in await everything(console, "admin")
        for user in ("clerk", "viewer"):
            found = await everything(console, user)
            assert CANARY not in found
            # Reasons about connections stay: they say what to do.
            assert REASONS["nats"] in found
            assert "it may quote values of rows" in found


@pytest.mark.usefixtures("reporting")
async def test_while_a_column_is_redacted_nobody_sees_a_reason_that_may_quote_it(
    line: Line, tmp_path: Path
) -> None:
    given = {
        "HEADRACE_CONSOLE_ACCESS_FILE": access_file(tmp_path),
        "HEADRACE_CONSOLE_REDACT": "shop.mail",
    }
    async with running_console(line.suite, **given) as console:
        await heard(console)
        found = await everything(console, "admin")
        assert CANARY not in found
        assert REASONS["nats"] in found
