"""A newcomer's first minute: `headrace up` in an empty folder, as a real process on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import aiohttp
import asyncpg
import pytest

from headrace.embedded.nats import EmbeddedNats
from headrace.testing.database import Database
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats
from headrace.testing.servers import SessionServers

# Each starts and stops a whole suite.
pytestmark = pytest.mark.slow

TABLE_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
ORDER = ("wal-reader", "publisher", "snapshot-responder", "schema-publisher", "telemetry")


class Up:
    """One `headrace up`, its output, and all processes that came of it."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.folder = folder
        self._arguments = arguments
        # Services inherit the mark; the embedded servers, which inherit nothing, have the folder in their command.
        self._mark = f"HEADRACE_TEST_MARK={uuid.uuid4().hex}"
        foreign = ("PG", "NATS", "HEADRACE_", "POSTGRES_")
        name, _, value = self._mark.partition("=")
        kept = {key: text for key, text in os.environ.items() if not key.startswith(foreign)}
        self._environment = {**kept, name: value, **environment}
        self.output = ""
        self._heard = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("headrace")),
            "up",
            *self._arguments,
            cwd=self.folder,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = asyncio.create_task(self._read(), name="output of up")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reader

    async def says(self, words: str, timeout_s: float = TABLE_TIMEOUT_S) -> re.Match[str]:
        """Wait until the output has these words (a pattern)."""
        try:
            async with asyncio.timeout(timeout_s):
                while not (found := re.search(words, self.output)):
                    assert not self._reader.done(), f"up ended before it said {words!r}:\n{self.output}"
                    self._heard.clear()
                    await self._heard.wait()
        except TimeoutError:
            raise AssertionError(f"up did not say {words!r}:\n{self.output}") from None
        return found

    async def ends(self) -> int:
        """Wait for its end, and for the end of its output; its exit status."""
        async with asyncio.timeout(TABLE_TIMEOUT_S + STOP_TIMEOUT_S):
            await self._reader
            return await self.process.wait()

    def survivors(self) -> list[str]:
        """Commands of processes that came of this run and still live."""
        return [
            shown
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and (shown := self._mine(entry)) is not None
        ]

    async def leaves_nothing(self, timeout_s: float = 10.0) -> None:
        """Wait for processes that are being killed to be gone."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.survivors():  # noqa: ASYNC110  # the end of a stranger's child gives no event
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"still running: {self.survivors()}") from None

    def _mine(self, entry: Path) -> str | None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            marked = self._mark.encode() in (entry / "environ").read_bytes()
            if command and (marked or str(self.folder) in command):
                return f"{entry.name} {command}"
        return None

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while data := await self.process.stdout.read(65_536):
            self.output += data.decode()
            self._heard.set()
        self._heard.set()


@pytest.fixture
def empty_folder(session_servers: SessionServers, names: Names) -> Path:
    """A folder with a space in its name, which another user may enter, as PostgreSQL must under root."""
    folder = session_servers.folder / f"first minute {names.unique}"
    folder.mkdir(mode=0o711)
    return folder


@pytest.fixture
async def running(empty_folder: Path) -> AsyncIterator[Up]:
    """An `up` that has shown its table."""
    async with Up(empty_folder) as up:
        await up.says(r"Up after [\d.]+ s")
        yield up


def port_of(server: str, output: str) -> str:
    found = re.search(rf"{server} listens on 127\.0\.0\.1:(\d+)", output)
    assert found, output
    return found[1]


def stopped_at(folder: Path, service: str) -> str:
    lines = (folder / ".headrace/logs" / f"{service}.log").read_text().splitlines()
    return next(line.split()[0] for line in reversed(lines) if "event=service_stopped" in line)


async def test_up_shows_changes_and_a_table_and_a_second_one_goes_on_with_the_data(empty_folder: Path) -> None:
    async with Up(empty_folder, "--once") as first:
        assert await first.ends() == 0, first.output
    for operation in ("insert", "update", "delete"):
        assert f"cdc.headrace_demo.{operation}" in first.output
    assert '{"id": 1, "name": "lamp", "price": "17.50", "tags": ["new"]}' in first.output
    for what in ("PostgreSQL", "NATS", *ORDER, "psql 'postgresql://", "nats --server nats://", "Ctrl-C"):
        assert what in first.output
    assert "\x1b" not in first.output, "no colours where there is no terminal"
    assert first.survivors() == []

    async with Up(empty_folder, "--once") as second:
        assert await second.ends() == 0, second.output
    assert re.search(r"still holds \d+ events", second.output)
    assert '"id": 3' in second.output, "the table goes on where it was"
    for server in ("PostgreSQL", "nats-server"):
        assert port_of(server, second.output) == port_of(server, first.output)
    assert second.survivors() == []


async def test_ctrl_c_stops_everything_in_order_and_leaves_no_process(running: Up) -> None:
    running.process.send_signal(signal.SIGINT)
    assert await running.ends() == 0, running.output
    assert running.survivors() == []
    times = [stopped_at(running.folder, service) for service in ORDER]
    assert times == sorted(times), "the reader first, what it feeds after it"
    assert running.output.index("services stopped") < running.output.index("nats-server stopped")
    assert running.output.index("nats-server stopped") < running.output.index("PostgreSQL stopped")


async def test_a_service_that_is_killed_comes_back_and_a_second_up_is_refused(running: Up) -> None:
    row = re.search(r"publisher +(http://\S+) +(\d+)", running.output)
    assert row
    os.kill(int(row[2]), signal.SIGKILL)
    await running.says(r"publisher ended \(killed by SIGKILL\); starting it again")
    async with Up(running.folder) as other:
        assert await other.ends() == 1
    assert re.fullmatch(r"headrace: headrace up already runs in .*\n", other.output)
    assert str(running.process.pid) in other.output
    await ready(row[1])
    publishers = [line for line in running.survivors() if line.endswith("headrace.cli publisher")]
    assert len(publishers) == 1, "never two of one service"
    assert not publishers[0].startswith(f"{row[2]} ")


async def ready(url: str) -> None:
    """Wait until a service answers that it is ready."""
    async with asyncio.timeout(30), aiohttp.ClientSession() as http:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(f"{url}/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.05)


async def test_nothing_outlives_an_up_that_is_killed_and_the_next_one_starts(running: Up) -> None:
    running.process.kill()
    assert await running.ends() == -signal.SIGKILL
    await running.leaves_nothing()
    async with Up(running.folder, "--once") as next_one:
        assert await next_one.ends() == 0, next_one.output


async def test_the_psql_command_that_up_shows_connects_and_no_secret_is_shown(running: Up) -> None:
    shown = re.search(r"psql '(postgresql://[^']+)'", running.output)
    assert shown
    connection = await asyncpg.connect(shown[1])
    try:
        assert await connection.fetchval("SELECT count(*) FROM headrace_demo") == 1
    finally:
        await connection.close()
    secret = (running.folder / ".headrace/postgres.password").read_text()
    assert secret not in running.output
    for name in ("postgres.password", "pgpass", "env"):
        assert (running.folder / ".headrace" / name).stat().st_mode & 0o077 == 0, f"{name} is for its owner only"


async def test_servers_that_the_environment_names_are_used_and_none_is_started(
    empty_folder: Path, database: Database, own_nats: OwnNats, names: Names
) -> None:
    nats: EmbeddedNats = await own_nats()
    await database.execute(f"CREATE PUBLICATION {names.publication} FOR ALL TABLES")
    environment = {
        "PG_HOST": "127.0.0.1",
        "PG_PORT": str(database.port),
        "PG_DB": database.name,
        "POSTGRES_BRIDGE_USER": database.user,
        "NATS_URL": nats.url,
        "HEADRACE_SLOT": names.slot,
        "HEADRACE_PUB": names.publication,
    }
    async with Up(empty_folder, "--once", **environment) as up:
        assert await up.ends() == 0, up.output
    assert f"127.0.0.1:{database.port}/{database.name}" in up.output
    assert not (empty_folder / ".headrace/postgres").exists()
    assert not (empty_folder / ".headrace/nats").exists()
    assert await database.fetch("SELECT 1 FROM pg_class WHERE relname = 'headrace_demo'") == []
    assert nats.running


async def test_a_server_that_can_not_be_reached_is_one_line_with_the_remedy(empty_folder: Path) -> None:
    async with Up(empty_folder, "--once", NATS_URL="nats://127.0.0.1:9", PG_HOST="127.0.0.1", PG_PORT="9") as up:
        assert await up.ends() == 1
    last = up.output.splitlines()[-1]
    assert last.startswith("headrace: PostgreSQL at 127.0.0.1:9 can't be used now")
    assert "set PG_HOST" in last
    assert "Traceback" not in up.output
