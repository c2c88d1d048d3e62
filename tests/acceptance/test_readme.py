"""Every block of commands in the README runs as printed, in the order of the page, in one shell.

Commands that follow something are stopped with Ctrl-C once their output shows what the page
promises. `headrace up` replaces `./taskw up`, which needs a separate clone. In the block about the
user's own servers, existing servers replace the named ones.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats
from headrace.testing.servers import SessionServers
from headrace.testing.up import Up
from tests.support.shell import Shell

pytestmark = [pytest.mark.slow, pytest.mark.spark]

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
FIRST = ("./taskw up", "./taskw test")
# The output after which a reader stops a command that keeps following.
SHOWN = {
    "headrace tail --from-start": r"INSERT +headrace_demo",
    "headrace tail orders --from-start": r'INSERT +orders +id=1 what="a boat"',
    "headrace mirror --table orders --to sqlite:///local.db": r"event=ready",
    "headrace audit up": r"Audit page: http",
    "headrace sink files": r"event=sink_follows",
}
# The output of a command that ends on its own.
SAID = {
    "headrace snapshot orders": r"1 row",
    "headrace verify --to sqlite:///local.db": r"orders",
    "headrace audit log --table orders": r"orders",
    # Nothing here is a terminal, where it would follow the suite.
    "headrace top": r"publisher",
    "headrace tail --json --from-start --limit 3": r'"operation": "INSERT"',
    "headrace archive ls": r"\d",
    "headrace lake ls": r"headrace_demo",
    "headrace sinks ls": r"files .*exactly once",
    'psql "$SQL_URL" -c "SELECT count(*) FROM orders"': r"\n +1\n",
    "headrace backup now": r"stored as",
    'psql -c "SELECT * FROM orders_restored"': r"1 \| a boat",
    "headrace replay --into sqlite:///again.db": r"replayed",
}

# Before `init`, the doctor reports failures; and nobody answers a question here.
UNATTENDED = {"headrace doctor": " || test $? = 1", "headrace teardown": " --yes"}


def lines_of(block: str) -> list[str]:
    """The commands of a block, without comments; continuation lines are joined."""
    joined = block.replace("\\\n", " ")
    return [
        line
        for line in (re.sub(r"\s+#.*", "", line).strip() for line in joined.splitlines())
        if line
    ]


@pytest.fixture
def clone(session_servers: SessionServers, names: Names) -> Path:
    """A folder with what the blocks use of a clone, which another user may enter, as PostgreSQL
    must under root.
    """
    folder = session_servers.folder / f"readme {names.unique}"
    folder.mkdir(mode=0o711)
    (folder / "deploy").symlink_to(ROOT / "deploy")
    return folder


@pytest.fixture
def environment() -> dict[str, str]:
    foreign = ("PG", "NATS", "HEADRACE_", "POSTGRES_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {
        **kept,
        "HEADRACE_SPARK_START_TIMEOUT_S": "250",
        "PATH": f"/usr/bin:/bin:{os.environ['PATH']}",
    }


@pytest.fixture
async def shell(clone: Path, environment: dict[str, str]) -> AsyncIterator[Shell]:
    async with Shell(clone, environment) as opened:
        yield opened


async def test_every_block_runs_as_it_is_printed_in_order_in_one_shell(
    clone: Path, shell: Shell, names: Names, database: Database, own_nats: OwnNats
) -> None:
    first, *blocks = [lines_of(block) for block in BLOCK.findall((ROOT / "README.md").read_text())]
    assert tuple(first) == FIRST
    ran: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        up = await stack.enter_async_context(Up(clone))
        await up.says(r"Up after [\d.]+ s")
        for block in blocks:
            if any(line.startswith("export PG_HOST") for line in block):
                await own_servers(clone, block, names, database, (await own_nats()).url)
                continue
            for line in block:
                if line.startswith("./taskw up"):
                    up.process.send_signal(signal.SIGINT)
                    assert await up.ends() == 0, up.output
                    options = [part.replace("$PWD", str(clone)) for part in shlex.split(line)[2:]]
                    up = await stack.enter_async_context(Up(clone, *options))
                    await up.says(r"Up after [\d.]+ s")
                    continue
                if line.startswith("helm ") and not Path(sys.executable).with_name("helm").exists():
                    # Locked only for Linux on x86-64, as the page says.
                    continue
                said = await shell.run(line, SHOWN.get(line))
                assert re.search(SAID.get(line, ""), said), f"{line}\n{said}"
                ran.append(line)
    assert {*SHOWN, *SAID} <= {*ran}, "the README no longer has a block that this test waits for"


async def own_servers(
    clone: Path, block: list[str], names: Names, database: Database, nats_url: str
) -> None:
    """The block about one's own servers, in another shell, on servers that are there in place of
    the named ones.
    """
    await database.execute(
        "CREATE TABLE users (id int PRIMARY KEY); CREATE TABLE orders (id int PRIMARY KEY)"
    )
    values = {"PG_HOST": "127.0.0.1", "PG_DB": database.name, "POSTGRES_BRIDGE_USER": database.user}
    values |= {"NATS_URL": nats_url, "PG_PORT": str(database.port)}
    values |= {
        **names.settings,
        "HEADRACE_HTTP_PORT": "0",
    }
    environment = {
        **os.environ,
        **values,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    async with Shell(clone, environment) as shell:
        for line in block:
            if line.startswith("export "):
                continue
            serves = line in ("headrace wal-reader", "headrace publisher")
            await shell.run(
                f"{line}{UNATTENDED.get(line, '')}", "nats_connected" if serves else None
            )
