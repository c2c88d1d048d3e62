"""A snapshot whose JVM or responder is killed ends complete or with one error, and nothing is left
running.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from headrace.testing.responder import (
    RESULT_TIMEOUT_S,
    Consumer,
    Responder,
    SnapshotFailedError,
    child_pids,
    is_alive,
    jvm_of,
    libraries_of,
)

pytestmark = pytest.mark.spark

# Far from complete when its first chunk has arrived.
OUTLIVED_ROWS = 200_000


async def test_a_killed_jvm_still_ends_in_a_complete_snapshot_with_nothing_doubled(
    responder: Responder, consumer: Consumer
) -> None:
    await consumer.fill("survivor", 60000)
    await consumer.snapshot("survivor", {"filter": [["id", "<", 10]]})
    jvm = jvm_of(responder.pid)
    assert jvm is not None
    chunks = await consumer.client.subscribe("init.snap.survivor.>")
    await consumer.client.flush()
    answer = await consumer.ask("survivor")
    await chunks.next_msg(timeout=RESULT_TIMEOUT_S)
    os.kill(jvm, signal.SIGKILL)
    snapshot = await consumer.result(answer["snapshot_id"])
    assert sorted(row["id"] for row in snapshot.rows) == list(range(1, 60001))
    assert jvm_of(responder.pid) not in {jvm, None}


async def test_a_standby_takes_over_a_killed_responders_request_and_its_spark_dies_with_it(
    responder: Responder, consumer: Consumer
) -> None:
    await consumer.fill("outlived", OUTLIVED_ROWS)
    active = responder.process
    assert active is not None
    # Beforehand: the snapshot must not be complete before its responder is killed.
    responder.start()
    await asyncio.to_thread(responder.wait_until, b"standing by")
    chunks = await consumer.client.subscribe("init.snap.outlived.>")
    await consumer.client.flush()
    answer = await consumer.ask("outlived")
    await chunks.next_msg(timeout=RESULT_TIMEOUT_S)
    # Its children are looked up while it can't complete the snapshot.
    active.send_signal(signal.SIGSTOP)
    family = child_pids(active.pid)
    began = time.monotonic()
    active.kill()
    active.wait()
    with pytest.raises(SnapshotFailedError, match="interrupted"):
        await consumer.result(answer["snapshot_id"])
    print(
        "taken over, and the snapshot reported as interrupted, within "
        f"{time.monotonic() - began:.1f} s"
    )
    kind, body = await asyncio.wait_for(consumer.results.get(), RESULT_TIMEOUT_S)
    assert kind == "meta", body
    assert body["snapshot_id"] != answer["snapshot_id"]
    snapshot = await consumer.read(body)
    assert sorted(row["id"] for row in snapshot.rows) == list(range(1, OUTLIVED_ROWS + 1))
    info = await consumer.client.jetstream().stream_info("SNAPSHOT_REQUESTS")
    assert info.state.messages == 0
    async with asyncio.timeout(20):
        while alive := [pid for pid in family if is_alive(pid)]:
            assert alive
            await asyncio.sleep(0.1)


async def test_the_responder_itself_loads_nothing_of_spark_or_arrow(
    responder: Responder, consumer: Consumer
) -> None:
    await consumer.publish("(id int)", "light")
    await consumer.sql.execute("INSERT INTO light VALUES (1)")
    assert (await consumer.snapshot("light")).rows == [{"id": 1}]
    assert not libraries_of(responder.pid, "arrow", "pandas", "numpy", "pydantic", "pyspark")
