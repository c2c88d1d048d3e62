"""The examples run as their readers run them: with the real suite, in two languages and a browser.

npm's packages are installed once for the module, in a separate folder: the repository stays clean.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.server
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.embedded.nats import EmbeddedNats
from headrace.testing.browser import browser, chromium
from headrace.testing.database import Database
from headrace.testing.oracle import stored
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import Suite

# Each starts servers and services, and some install packages.
pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Line:
    """A running wal-reader and publisher, between a database and a nats-server."""

    database: Database
    nats: EmbeddedNats
    suite: Suite


@pytest.fixture
async def line(own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path) -> AsyncIterator[Line]:
    postgres, nats = await own_postgres(), await own_nats(websocket_port=0)
    database = Database(postgres, "postgres")
    await database.execute(
        "CREATE TABLE users (id bigint PRIMARY KEY, name text, price numeric, born timestamptz, "
        "photo bytea, bio text, "
        "tags jsonb, big bigint); ALTER TABLE users ALTER bio SET STORAGE EXTERNAL"
    )
    await database.execute("CREATE PUBLICATION headrace FOR ALL TABLES")
    environment = {**postgres.environment(), "PG_DB": "postgres", "NATS_URL": nats.url}
    async with Suite(environment, tmp_path) as suite:
        await suite.logged("publisher", "epoch_joined")
        yield Line(database, nats, suite)
    await database.close()


@contextlib.asynccontextmanager
async def running(*command: str | Path, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command for as long as the block lasts."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def lines(process: asyncio.subprocess.Process, count: int) -> list[str]:
    """So many lines of its output; an assertion with its last words where it ends before."""
    assert process.stdout is not None
    assert process.stderr is not None
    found: list[str] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(found) < count:
            text = await process.stdout.readline()
            assert text, f"it ended after {found}: {(await process.stderr.read()).decode()}"
            found.append(text.decode().rstrip("\n"))
    return found


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not true():  # noqa: ASYNC110  # another process's work gives no event
            await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JavaScript examples with what they depend on."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("Node.js with npm is not installed")
    folder = tmp_path_factory.mktemp("javascript") / "examples"
    shutil.copytree(
        EXAMPLES / "javascript", folder, ignore=shutil.ignore_patterns("node_modules", "dist")
    )
    npm(folder, "ci", "--no-audit", "--no-fund")
    return folder


def npm(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        ["npm", *arguments],  # noqa: S607  # npm is where the PATH says
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_lock_of_the_javascript_examples_names_no_host_and_knows_every_file_by_its_hash() -> (
    None
):
    lock = json.loads((EXAMPLES / "javascript/package-lock.json").read_text())
    wanted = json.loads((EXAMPLES / "javascript/package.json").read_text())
    assert "://" not in json.dumps(lock)
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    for name, version in {**wanted["dependencies"], **wanted["devDependencies"]}.items():
        assert packages[f"node_modules/{name}"]["version"] == version


async def write_awkward_rows(database: Database) -> None:
    await database.execute(
        "INSERT INTO users VALUES (1, 'Ada', 19.90, '2025-12-12 12:00:00+00', '\\xdeadbeef', "
        "repeat('x', 3000), "
        '\'{"a": [1, null, "ü"]}\', 9007199254740993), (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL)'
    )
    await database.execute("UPDATE users SET name = 'Grace' WHERE id = 1")
    await database.execute("UPDATE users SET id = 3 WHERE id = 2")
    await database.execute("DELETE FROM users WHERE id = 3")
    await database.execute("TRUNCATE users")


async def test_an_event_read_with_clients_of_two_languages_decodes_to_the_documented_payload(
    line: Line, javascript: Path
) -> None:
    await write_awkward_rows(line.database)
    async with running(
        "node", "follow.mjs", line.nats.url, "users", "7", folder=javascript
    ) as process:
        by_javascript = [json.loads(text) for text in await lines(process, 7)]
        async with asyncio.timeout(TIMEOUT_S):
            assert await process.wait() == 0
    by_python = [event.payload for event in await stored(line.nats.url)]
    first = by_python[1]["data"]
    # JSON, or a JavaScript number, can't hold these two: they have their documented forms.
    assert (first.pop("photo"), first.pop("big")) == (b"\xde\xad\xbe\xef", 9007199254740993)
    assert (by_javascript[1]["data"].pop("photo"), by_javascript[1]["data"].pop("big")) == (
        "3q2+7w==",
        "9007199254740993",
    )
    first_update = by_python[3]["data"]
    assert first_update.pop("photo") == b"\xde\xad\xbe\xef"
    assert by_javascript[3]["data"].pop("photo") == "3q2+7w=="
    assert (first_update.pop("big"), by_javascript[3]["data"].pop("big")) == (
        9007199254740993,
        "9007199254740993",
    )
    assert by_javascript == by_python
    operations = ["SCHEMA", "INSERT", "INSERT", "UPDATE", "UPDATE", "DELETE", "TRUNCATE"]
    assert [payload["operation"] for payload in by_python] == operations
    assert first == {
        "id": 1,
        "name": "Ada",
        "price": "19.90",
        "born": "2025-12-12T12:00:00Z",
        "bio": "x" * 3000,
        "tags": {"a": [1, None, "ü"]},
    }
    assert by_python[3]["unchanged"] == ["bio"]
    assert by_python[4]["old"] == {"id": 2}


async def test_the_python_follower_prints_changes_and_goes_on_where_it_ended(
    line: Line, tmp_path: Path
) -> None:
    command = (sys.executable, EXAMPLES / "python/follow.py", line.nats.url, "users")
    await line.database.execute(
        "INSERT INTO users (id, name) VALUES (1, 'Ada'), (2, 'Lin'), (3, 'Zoë')"
    )
    async with running(*command, folder=tmp_path) as process:
        first = await lines(process, 4)
    assert [text.split(",")[0] for text in first] == [
        "SCHEMA users {}",
        *(f"INSERT users {{'id': {n}" for n in (1, 2, 3)),
    ]
    await line.database.execute("DELETE FROM users WHERE id = 1")
    async with running(*command, folder=tmp_path) as process:
        again = await lines(process, 1)
    # The last one may come again: it was killed between printing it and saying that it is done.
    assert again[0].startswith(("INSERT users {'id': 3", "DELETE users {'id': 1"))


def copied(path: Path) -> dict[int, dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as db:
        return {
            int(key): json.loads(data) for key, data in db.execute("SELECT key, data FROM copy")
        }


async def source(database: Database) -> dict[int, dict[str, Any]]:
    rows = await database.fetch("SELECT id, name, bio FROM users")
    return {row["id"]: dict(row) for row in rows}


async def test_the_sqlite_copy_is_exact_although_it_is_killed_again_and_again(
    line: Line, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    command = (sys.executable, EXAMPLES / "python/exactly_once.py", line.nats.url, "users", copy)
    for turn in range(4):
        await make_changes(line.database, turn * 1000)
        async with running(*command, folder=tmp_path):
            await until(functools.partial(has_moved, copy, turn * 60))
    expected = await source(line.database)
    assert len(expected) > 350
    async with running(*command, folder=tmp_path):
        await until(lambda: copied_names(copy) == expected)


async def make_changes(database: Database, base: int) -> None:
    await database.execute(
        "INSERT INTO users (id, name, bio) SELECT g, 'name ' || g, repeat(g::text, 900) "
        f"FROM generate_series({base}, {base + 119}) g"
    )
    await database.execute(f"UPDATE users SET name = name || '!' WHERE id % 3 = 0 AND id >= {base}")
    await database.execute(f"UPDATE users SET id = id + 500 WHERE id % 7 = 0 AND id >= {base}")
    await database.execute(f"DELETE FROM users WHERE id % 5 = 0 AND id >= {base}")


def has_moved(copy: Path, beyond: int) -> bool:
    """Whether so many messages of the stream have been applied: then it is killed in the middle."""
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(copy, timeout=30)) as db,
    ):
        row = db.execute("SELECT max(stream_seq) FROM marks").fetchone()
        return bool(row and row[0] and row[0] > beyond)
    return False


def copied_names(copy: Path) -> dict[int, dict[str, Any]]:
    wanted = ("id", "name", "bio")
    return {key: {name: row[name] for name in wanted} for key, row in copied(copy).items()}


@pytest.fixture
def page(javascript: Path) -> Iterator[str]:
    """The browser page, built and served on loopback."""
    npm(javascript, "run", "--silent", "page")
    handler = functools.partial(_Quiet, directory=str(javascript))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="page")
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/page.html"
        server.shutdown()
        thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name is the base class's
        """Say nothing: pytest's output is for tests."""


@pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")
async def test_a_page_in_a_browser_shows_the_table_live_over_websocket(
    line: Line, page: str, tmp_path: Path
) -> None:
    await line.database.execute(
        "INSERT INTO users (id, name, bio) VALUES (1, 'Ada', repeat('x', 3000)), (2, 'Lin', '')"
    )
    await line.database.execute("UPDATE users SET name = 'Grace <b>' WHERE id = 1")
    address = f"{page}?server={line.nats.websocket_url}&table=users"
    async with browser(tmp_path / "profile", address) as shown:
        await shown.shows("2 rows")
        assert await shown.text("tbody tr:last-child td:nth-child(2)") == "Grace <b>"
        # Live: what is written now appears without a reload.
        await line.database.execute("DELETE FROM users WHERE id = 2")
        await shown.shows("1 rows, DELETE was the last change")
        await line.database.execute("INSERT INTO users (id, name) VALUES (7, 'Zoë')")
        await shown.shows("2 rows, INSERT was the last change")
        assert await shown.text("tbody tr:last-child td:nth-child(2)") == "Zoë"
        assert await shown.text("thead th:first-child") == "id"


def snippets(page: str, language: str) -> list[str]:
    """The snippets of a page that promise to run."""
    text = (EXAMPLES.parent / page).read_text()
    return re.findall(rf"<!-- run -->\n```{language}\n(.*?)```", text, re.DOTALL)


def prepared(snippet: str, line: Line, path: Path) -> Path:
    """The snippet as a file, with the test's server in place of the page's."""
    text, count = re.subn(r"nats://127\.0\.0\.1:\d+", line.nats.url, snippet)
    assert count == 1
    path.write_text(text)
    return path


@pytest.mark.parametrize(("page", "count"), [("README.md", 2), ("docs/consume.md", 3)])
async def test_the_snippets_of_a_page_run_as_they_stand(
    line: Line, javascript: Path, tmp_path: Path, page: str, count: int
) -> None:
    await line.database.execute("INSERT INTO users (id, name) VALUES (1, 'Ada')")
    commands = [
        (sys.executable, prepared(snippet, line, tmp_path / f"snippet{number}.py"))
        for number, snippet in enumerate(snippets(page, "python"))
    ]
    commands += [
        ("node", prepared(snippet, line, javascript / "snippet.mjs"))
        for snippet in snippets(page, "javascript")
    ]
    assert len(commands) == count
    for program, path in commands:
        async with running(program, path, folder=path.parent) as process:
            (shape,) = await lines(process, 1)
            assert shape.startswith(("SCHEMA users {}", "cdc.users.schema {"))
            async with asyncio.timeout(TIMEOUT_S):
                while not re.search(r"INSERT users \{|cdc\.users\.insert \{", shape):
                    (shape,) = await lines(process, 1)
