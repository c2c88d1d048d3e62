"""Every command of docs/howto.md, in its order, by a role with no more rights than it needs."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import nats
import pytest

from headrace.contract import events
from headrace.embedded.ports import free_port
from headrace.embedded.postgres_install import postgres_binaries
from headrace.testing.line import SETTINGS
from headrace.testing.plugin import OwnNats
from headrace.testing.suite import Suite
from tests.support.own_source import OwnSource

PAGE = Path(__file__).parents[2] / "docs/howto.md"
RECIPE = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
SERVICES = ("wal-reader", "publisher", "schema-publisher", "telemetry")


async def run(commands: str, environment: Mapping[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-euo",
        "pipefail",
        "-c",
        commands,
        env=environment,
        stdout=-1,
        stderr=-2,
        start_new_session=True,
    )
    async with asyncio.timeout(90):
        output, _ = await process.communicate()
    assert process.returncode == 0, f"{commands}\n{output.decode()}"
    return output.decode()


async def gaps(url: str) -> list[events.Payload]:
    client = await nats.connect(url)
    try:
        message = await client.jetstream().get_last_msg("CDC", "cdc._gap")
        return [events.decode(message.data or b"")]
    except nats.js.errors.NotFoundError:
        return []
    finally:
        await client.close()


@pytest.mark.slow
async def test_every_recipe_works_as_it_is_written(
    own_source: OwnSource, own_nats: OwnNats, tmp_path: Path
) -> None:
    database = await own_source(
        "CREATE ROLE cdc LOGIN REPLICATION PASSWORD 'the-old-one'; CREATE TABLE users (id bigint "
        "PRIMARY KEY);"
        "GRANT SELECT ON users TO cdc; CREATE PUBLICATION headrace FOR TABLE users"
    )
    server = await own_nats()
    (secret := tmp_path / "secret").write_text("the-old-one")
    psql = postgres_binaries(18, None) / "psql"
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PG", "NATS", "HEADRACE_"))
        },
        **SETTINGS,
        "HEADRACE_CATALOG_INTERVAL_S": "1",
        **database.server.environment(),
        "PATH": f"{Path(sys.executable).parent}:{psql.parent}:{os.environ['PATH']}",
        "PG_DB": "postgres",
        "NATS_URL": server.url,
        "POSTGRES_BRIDGE_USER": "cdc",
        "POSTGRES_BRIDGE_PASSWORD_FILE": str(secret),
    }
    await run("headrace init", environment)
    port = str(free_port())
    environment["HEADRACE_TELEMETRY_URL"] = f"http://127.0.0.1:{port}"
    ran = []
    async with Suite({**environment, "HEADRACE_HTTP_PORT": "0"}, tmp_path, services=()) as suite:
        for service in SERVICES:
            await suite.start(
                service, **({"HEADRACE_HTTP_PORT": port} if service == "telemetry" else {})
            )
        await suite.logged("publisher", "epoch_joined")
        for title, text in RECIPE.findall(PAGE.read_text()):
            if title == "Recover a lost slot":
                await database.execute("INSERT INTO users VALUES (1)")
                await suite.stop("wal-reader")
                await database.execute("INSERT INTO users VALUES (2)")
            if title == "Take everything away":
                for service in SERVICES:
                    await suite.stop(service)
            for commands in BLOCK.findall(text):
                output = await run(commands, environment)
                ran.append(title)
                if title == "Add a table" and "tail" in commands:
                    assert re.search(r"SCHEMA\s+gadgets", output), output
                    assert re.search(r'INSERT\s+gadgets\s+id=1 name="lamp"', output), output
            if title == "Recover a lost slot":
                await suite.start("wal-reader")
                await database.execute("INSERT INTO users VALUES (3)")
                async with asyncio.timeout(60):
                    while not await gaps(server.url):  # noqa: ASYNC110  # a stream that may not be there yet
                        await asyncio.sleep(0.2)
    assert len(set(ran)) >= 6
    left = await database.fetchval(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'headrace'"
    )
    assert left == 0
