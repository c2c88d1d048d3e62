"""A pull consumer in a simulated NATS, on virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from headrace.consumer.pull import MESSAGES_MAX, Pull
from tests.simulation.stream import Stream
from tests.support.virtual_nats import VirtualNats


def cdc(nats: VirtualNats) -> Stream:
    return nats.server.streams["CDC"]


def put(nats: VirtualNats, count: int, size: int = 2) -> None:
    for _ in range(count):
        number = cdc(nats).last_seq + 1
        nats.server.put("cdc.a.insert", f"{number}".encode().ljust(size))


def pulling(
    nats: VirtualNats,
    use: Callable[[Pull], Awaitable[Any]],
    *,
    start: int | None = 1,
    durable: str | None = None,
    filters: tuple[str, ...] = (),
    messages_max: int = MESSAGES_MAX,
) -> Any:
    """Open a reader, and use it."""

    async def work() -> Any:
        client = nats.client()
        pull = Pull(client, "CDC", filters, durable, start, messages_max)
        await pull.open((await client.jetstream().stream_info("CDC")).created)
        try:
            return await use(pull)
        finally:
            await pull.close()

    return nats.do(work(), patience_s=400.0)


async def rest(pull: Pull, quiet_s: float = 40.0) -> list[int]:
    """The sequences of all messages that come until nothing comes for a while."""
    found: list[int] = []
    while messages := await pull.read(quiet_s):
        found += [seq for seq, *_ in messages]
        assert all(int(payload) == seq for seq, _, payload, _ in messages)
    return found


def losing(nats: VirtualNats, *numbers: int) -> None:
    """These deliveries of messages, counted from one, are lost on their way."""
    deliver = nats.server.route_pull
    count = [0]

    def lossy(*given: Any) -> None:
        count[0] += 1
        if count[0] not in numbers:
            deliver(*given)

    nats.server.route_pull = lossy  # type: ignore[method-assign,assignment]  # a lossy network
