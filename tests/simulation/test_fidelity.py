"""The simulated JetStream answers as the real one does: the same random requests, to both."""

from __future__ import annotations

import random
from contextvars import copy_context
from typing import Any

import nats
import pytest

from headrace.embedded.nats import EmbeddedNats
from tests.simulation.client import SimClient
from tests.simulation.clockwork import VirtualLoop
from tests.simulation.scripts import STREAM, Request, comparable, drawn_and_run, run_again
from tests.simulation.server import Server

SCRIPTS, LENGTH = 25, 25


def simulated(requests: list[Request]) -> list[Any]:
    """What the simulated server answers."""
    loop, chance = VirtualLoop(), random.Random(0)
    server = Server(loop, chance)
    client = SimClient(server, None, copy_context())
    client.open()
    task = loop.create_task(run_again(client, requests))
    loop.run_until(task.done)
    return task.result()


def compare(done: list[tuple[Request, Any]]) -> None:
    answers = simulated([request for request, _ in done])
    for number, ((request, real), fake) in enumerate(zip(done, answers, strict=True)):
        before = [one for one, _ in done[:number]]
        assert comparable(fake) == comparable(real), f"{request} after {before}"


@pytest.mark.parametrize("seed", range(SCRIPTS))
async def test_the_simulated_jetstream_answers_as_the_real_one(
    nats_server: EmbeddedNats, seed: int
) -> None:
    client = await nats.connect(nats_server.url)
    try:
        done = await drawn_and_run(client, seed, LENGTH)
        compare(done)
    finally:
        await client.jetstream().delete_stream(STREAM)
        await client.close()
