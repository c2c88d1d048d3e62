"""A webhook receives every change at least once, in order within a key despite kills. A
receiver that leaves out what it has seen, by `webhook-id`, has every change once.
"""

from __future__ import annotations

from typing import Any

import pytest

from headrace.lsn import Position
from headrace.testing.oracle import Change
from tests.support.sink_kills import POINTS, SinkLine
from tests.support.webhook_receiver import SECRET, Receiver, serve


def change(body: dict[str, Any]) -> Change:
    return Change(Position(body["tx"]["lsn"], body["tx"]["seq"]), body["operation"], body["table"])


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_nothing_is_lost_and_a_repeat_is_recognized_after_kills(line: SinkLine) -> None:
    receiver = Receiver()
    runner = await serve(receiver)
    plan = {
        "name": "shop",
        "to": f"http://127.0.0.1:{receiver.port}/hook",
        "options": {
            "secret": "env:WEBHOOK_SECRET",
            "allow_networks": ["127.0.0.0/8"],
            "allow_http": True,
            "timeout_s": 5.0,
        },
        "events_max": 50,
        "environment": {"WEBHOOK_SECRET": SECRET},
    }

    def first_arrivals() -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for body, headers in receiver.requests:
            if body["operation"] != "SCHEMA":
                found.setdefault(headers["webhook-id"], body)
        return found

    async def count() -> int:
        return len(first_arrivals())

    points = (*POINTS, "sink.half_written")
    committed = await line.delivered_after_kills(plan, points, count)
    arrived = first_arrivals()
    assert sorted(map(change, arrived.values()), key=lambda one: one.position) == committed
    by_key: dict[tuple[str, str], list[Position]] = {}
    for body in arrived.values():
        key = (body["table"], str([body["data"][name] for name in body["key"]]))
        by_key.setdefault(key, []).append(change(body).position)
    assert all(positions == sorted(positions) for positions in by_key.values())
    # The kills did interrupt something.
    assert len(receiver.requests) > len(arrived)
    await runner.cleanup()
