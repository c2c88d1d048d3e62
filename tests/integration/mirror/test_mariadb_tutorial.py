"""The commands of docs/sinks-databases.md for MariaDB, as they are written, with a real server."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.testing.database import Database
from headrace.testing.mariadb import MariadbServer, unpacked
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import HEADRACE, Suite
from tests.support.exactly_once import environment
from tests.support.sinks import sink_process

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[3] / "docs/sinks-databases.md"
SERVICES = ("wal-reader", "publisher", "schema-publisher", "snapshot-responder")


async def said(commands: str, folder: Path, settings: Mapping[str, str]) -> str:
    """The output of commands of the page, which must succeed."""
    shell = await asyncio.create_subprocess_exec(
        "bash", "-ec", commands, cwd=folder, env=dict(settings), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await shell.communicate()
    assert shell.returncode == 0, commands
    return output.decode()


def programs(folder: Path, server: MariadbServer) -> str:
    """A PATH with `headrace`, and with a `mariadb` that knows this server."""
    folder.mkdir()
    client = f"{unpacked()}/bin/mariadb --no-defaults --host=127.0.0.1 --port={server.port}"
    (folder / "mariadb").write_text(f'#!/bin/sh\nexec {client} --user=root -N "$@"\n')
    (folder / "mariadb").chmod(0o755)
    return f"{folder}:{Path(HEADRACE).parent}:{os.environ['PATH']}"


async def test_the_first_copy_in_mariadb(
    own_postgres: OwnPostgres, own_nats: OwnNats, mariadb: MariadbServer, tmp_path: Path
) -> None:
    section = PAGE.read_text().split("## MariaDB\n", 1)[1]
    first, second = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)[:2]
    prepare, _, rest = first.replace(":3306", f":{mariadb.port}").partition("headrace sink shop\n")
    assert not rest
    postgres, nats = await own_postgres(), await own_nats()
    database = Database(postgres, "postgres")
    await database.execute(
        "CREATE TABLE products (id int PRIMARY KEY, name text, price numeric(9,2));"
        "INSERT INTO products VALUES (7, 'a lamp', 19.90), (8, 'a chair', 5);"
        "CREATE PUBLICATION headrace FOR ALL TABLES"
    )
    settings = environment(postgres, nats, "event")
    shell = {**settings, "PATH": programs(tmp_path / "bin", mariadb), "HOME": str(tmp_path)}
    try:
        async with Suite(settings, tmp_path, SERVICES) as suite:
            await suite.logged("schema-publisher", "table=public.products ")
            assert "would be created" in await said(prepare, tmp_path, shell)
            config = tmp_path / "headrace.toml"
            async with sink_process(settings, config, "shop", SHOP_PASSWORD="secret") as sink:
                await database.execute("UPDATE products SET price = 17.50 WHERE id = 7")
                await database.execute("INSERT INTO products VALUES (9, 'a desk', 80)")
                await sink.logged("event=ready")
                found = await said(second, tmp_path, shell)
        rows = [line.split("\t") for line in found.splitlines()[-3:]]
        assert rows == [
            ["7", "a lamp", "17.50"],
            ["8", "a chair", "5.00"],
            ["9", "a desk", "80.00"],
        ]
        assert re.search(r"= products +3 rows at ", found)
    finally:
        mariadb.asked("DROP DATABASE IF EXISTS shop; DROP USER IF EXISTS headrace")
        await database.close()
