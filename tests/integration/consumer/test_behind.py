"""A follower's distance from the end is what the stream says, even if messages were discarded."""

from __future__ import annotations

import asyncio

import nats

from headrace.consumer.behind import Behind, behind
from headrace.testing.plugin import OwnNats


async def test_what_is_not_settled_is_counted_and_has_an_age(own_nats: OwnNats) -> None:
    server = await own_nats()
    client = await nats.connect(server.url)
    try:
        stream = client.jetstream()
        await stream.add_stream(name="CDC", subjects=["cdc.>"])
        assert await behind(stream, "CDC", 0) == Behind()
        for _ in range(3):
            await stream.publish("cdc.t.insert", b"x")
        await asyncio.sleep(0.2)
        found = await behind(stream, "CDC", 1)
        assert found.messages == 2
        assert 0.2 <= found.age_s < 60
        assert await behind(stream, "CDC", 3) == Behind()
        # As of a stream that held more before it was recreated.
        assert await behind(stream, "CDC", 9) == Behind()
        await stream.purge_stream("CDC", seq=3)
        assert (await behind(stream, "CDC", 0)).messages == 1
        await stream.purge_stream("CDC")
        assert await behind(stream, "CDC", 0) == Behind()
    finally:
        await client.close()
