"""Fast ingest as a library, with the program in examples/: every line is stored once and in order,
even if processes are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from headrace.embedded.nats import EmbeddedNats
from headrace.testing.clusters import LEADER_S, leader_of, nats_cluster
from headrace.testing.oracle import raw_messages
from headrace.testing.plugin import OwnNats
from headrace.testing.servers import SessionServers

EXAMPLE = Path(__file__).parents[2] / "examples/python/fast_ingest.py"
LINES = 150_000
LINES_MAX = 20 * LINES
# So many lines are stored before a fault hits.
UNDER_WAY = 5_000
STREAM = "LINES"
# JetStream's error code while a server of the cluster has not joined.
NO_SUITABLE_PEERS = 10005

# Done to the program, or to a server next to it; whether the program was still storing lines.
Fault = Callable[[Process], Awaitable[bool]]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {number} of many\n" for number in range(1, LINES + 1)))
    return path


@pytest.fixture
async def cluster(session_servers: SessionServers) -> AsyncIterator[list[EmbeddedNats]]:
    async with nats_cluster(session_servers) as servers:
        yield servers


async def started(urls: str, lines: Path) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, EXAMPLE, urls, STREAM, lines)


async def made(url: str, replicas: int = 1) -> None:
    client = await nats.connect(url)
    config = {
        "name": STREAM,
        "subjects": ["lines.>"],
        "storage": "file",
        "num_replicas": replicas,
        "allow_batched": True,
        # So short that it hides no double.
        "duplicate_window": 100_000_000,
    }
    async with asyncio.timeout(LEADER_S):
        while not await made_now(client, json.dumps(config).encode()):  # noqa: ASYNC110  # a cluster meets silently
            await asyncio.sleep(0.5)
    await client.close()


async def made_now(client: Client, config: bytes) -> bool:
    """A cluster that has not met yet has no room or too few servers, or says nothing."""
    try:
        answer = await client.request(f"$JS.API.STREAM.CREATE.{STREAM}", config, timeout=3)
    except (NatsError, TimeoutError):
        return False
    said = json.loads(answer.data)
    error = said.get("error", {})
    too_few = error.get("err_code") == NO_SUITABLE_PEERS
    assert not error or too_few or error["code"] in (500, 503), said
    return not error


async def stepped_down(url: str) -> None:
    """Ask until a leader answers: the one that was found may no longer lead."""
    client = await nats.connect(url)
    async with asyncio.timeout(LEADER_S):
        while True:
            with contextlib.suppress(NatsError, TimeoutError):
                answer = await client.request(
                    f"$JS.API.STREAM.LEADER.STEPDOWN.{STREAM}", b"", timeout=5
                )
                if json.loads(answer.data).get("success"):
                    break
            await asyncio.sleep(0.1)
    await client.close()


async def stored_now(client: Client) -> int:
    """How many lines are in the stream; asked again until somebody answers for it."""
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(NatsError, TimeoutError):
                return (await client.jetstream(timeout=0.5).stream_info(STREAM)).state.messages
            await asyncio.sleep(0.02)


async def struck_under_way(urls: str, lines: Path, faults: Iterable[Fault]) -> Process:
    """Let each fault hit a program that is storing lines; on a machine that is faster than the
    fault, give it more.
    """
    client = await nats.connect(
        urls.split(","), max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=quiet
    )
    program = await started(urls, lines)
    for fault in faults:
        hit = False
        while not hit:
            if program.returncode is not None:
                lengthened(lines, LINES if program.returncode == 0 else 0)
                program = await started(urls, lines)
            before = await stored_now(client)
            while program.returncode is None and await stored_now(client) < before + UNDER_WAY:  # noqa: ASYNC110  # polled
                await asyncio.sleep(0.01)
            hit = await fault(program)
    # nats-py cancels the task that closes it while it reconnects.
    while not client.is_connected:  # noqa: ASYNC110  # polled
        await asyncio.sleep(0.01)
    await client.close()
    return program


async def quiet(_error: Exception) -> None:
    """The faults are the test's own."""


def lengthened(lines: Path, more: int) -> None:
    there = len(lines.read_bytes().splitlines())
    assert there + more <= LINES_MAX, "it is through before any fault can hit it"
    with lines.open("a") as file:
        file.writelines(f"line {number} of many\n" for number in range(there + 1, there + more + 1))


async def found(url: str) -> list[bytes]:
    """Read again until it succeeds: a request to a cluster without a leader gets no answer."""
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(NatsError):
                return [message.data for message in await raw_messages(url, STREAM)]


def expected(lines: Path) -> list[bytes]:
    return lines.read_bytes().splitlines()


async def test_every_line_is_stored_once_in_order_though_program_and_server_are_killed(
    own_nats: OwnNats, lines: Path
) -> None:
    server = await own_nats()
    await made(server.url)

    async def kill_program(program: Process) -> bool:
        if program.returncode is None:
            program.send_signal(signal.SIGKILL)
        return await program.wait() == -signal.SIGKILL

    async def kill_server(program: Process) -> bool:
        await server.kill()
        hit = program.returncode is None
        await server.start()
        return hit

    faults = [kill_program, kill_server, kill_program, kill_server, kill_program]
    await struck_under_way(server.url, lines, faults)
    program = await started(server.url, lines)
    assert await program.wait() == 0
    assert await found(server.url) == expected(lines)


async def test_every_line_is_stored_once_in_order_though_leaders_step_down_and_die(
    cluster: list[EmbeddedNats], lines: Path
) -> None:
    urls = ",".join(server.url for server in cluster)
    await made(cluster[0].url, replicas=3)

    async def step_down(program: Process) -> bool:
        await stepped_down((await leader_of(cluster, STREAM)).url)
        return program.returncode is None

    async def kill_leader(program: Process) -> bool:
        leader = await leader_of(cluster, STREAM)
        await leader.kill()
        if program.returncode is None:
            return True
        # A second dead server would leave no majority.
        await leader.start()
        return False

    program = await struck_under_way(urls, lines, [step_down, step_down, step_down, kill_leader])
    assert await program.wait() == 0
    # Nobody answers for the stream before the two that are left have elected one.
    left = await leader_of(cluster, STREAM)
    assert await found(left.url) == expected(lines)
