"""Fast ingest as a library, by the program in examples/: whatever is killed, every line is there once, in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError

from headrace.embedded.nats import EmbeddedNats
from headrace.testing.clusters import LEADER_S, leader_of, nats_cluster
from headrace.testing.oracle import raw_messages
from headrace.testing.plugin import OwnNats
from headrace.testing.servers import SessionServers

EXAMPLE = Path(__file__).parents[2] / "examples/python/fast_ingest.py"
LINES = 150_000
STREAM = "LINES"


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
        while not await made_now(client, json.dumps(config).encode()):  # noqa: ASYNC110  # a cluster meets in silence
            await asyncio.sleep(0.5)
    await client.close()


async def made_now(client: Client, config: bytes) -> bool:
    """A cluster that has not met yet has no room, or says nothing."""
    try:
        answer = await client.request(f"$JS.API.STREAM.CREATE.{STREAM}", config, timeout=3)
    except (NatsError, TimeoutError):
        return False
    said = json.loads(answer.data)
    assert "error" not in said or said["error"]["code"] in (500, 503), said
    return "error" not in said


async def stepped_down(url: str) -> None:
    client = await nats.connect(url)
    await client.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{STREAM}", b"", timeout=10)
    await client.close()


async def stored_to(urls: str, count: int) -> None:
    """Wait until so many lines are in the stream."""
    client = await nats.connect(urls.split(","))
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(NatsError, JetStreamError, TimeoutError):
                if (await client.jetstream(timeout=0.5).stream_info(STREAM)).state.messages >= count:
                    break
            await asyncio.sleep(0.02)
    await client.close()


async def found(url: str) -> list[bytes]:
    return [message.data for message in await raw_messages(url, STREAM)]


def expected(lines: Path) -> list[bytes]:
    return lines.read_bytes().splitlines()


async def test_every_line_is_stored_once_in_order_though_program_and_server_are_killed(
    own_nats: OwnNats, lines: Path
) -> None:
    server, chance = await own_nats(), random.Random(7)
    await made(server.url)
    killed = 0
    for _ in range(4):
        program = await started(server.url, lines)
        await asyncio.sleep(0.6 + chance.random())
        if chance.random() < 0.5:
            await server.kill()
            await server.start()
        if program.returncode is None:
            program.send_signal(signal.SIGKILL)
            killed += 1
        await program.wait()
    assert killed, "it was always through before"
    program = await started(server.url, lines)
    assert await program.wait() == 0
    assert await found(server.url) == expected(lines)


async def test_every_line_is_stored_once_in_order_though_leaders_step_down_and_die(
    cluster: list[EmbeddedNats], lines: Path
) -> None:
    urls = ",".join(server.url for server in cluster)
    await made(cluster[0].url, replicas=3)
    program = await started(urls, lines)
    for part in (0.05, 0.1, 0.15):
        await stored_to(urls, int(part * LINES))
        await stepped_down((await leader_of(cluster, STREAM)).url)
    leader = await leader_of(cluster, STREAM)
    await stored_to(urls, int(0.2 * LINES))
    await leader.kill()
    assert program.returncode is None, "the leader died with nothing under way"
    async with asyncio.timeout(300):
        assert await program.wait() == 0
    # Nobody answers for the stream before the two that are left have elected one.
    left = await leader_of(cluster, STREAM)
    assert await found(left.url) == expected(lines)
