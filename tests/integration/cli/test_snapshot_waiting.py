"""`headrace snapshot` shows that it waits and for how long, and says what Ctrl-C leaves running."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys

import nats

from headrace.contract.events import REPLY_HEADER
from headrace.contract.subjects_and_ids import snapshot_progress_subject, snapshot_request_subject
from headrace.settings import load
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats


async def test_a_snapshot_that_takes_long_is_reported_and_survives_ctrl_c(
    own_nats: OwnNats, names: Names
) -> None:
    server = await own_nats()
    environment = {**os.environ, **names.settings, "NATS_URL": server.url}
    streams = load(environment).streams
    client = await nats.connect(server.url)
    for stream in (streams.cdc, streams.init):
        await client.jetstream().add_stream(name=stream, subjects=[f"unused.{stream}"])
    # A responder that accepts, whose Spark then takes its time.
    requests = await client.subscribe(snapshot_request_subject("users"))
    await client.flush()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli", "snapshot", "users"),
        env=environment,
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    request = await requests.next_msg(timeout=120)
    answer = {"snapshot_id": "s1", "status": "accepted"}
    await client.publish((request.headers or {})[REPLY_HEADER], json.dumps(answer).encode())
    progress = {"rows": 0, "rows_estimated": 0}
    await client.publish(snapshot_progress_subject("users"), json.dumps(progress).encode())
    assert re.fullmatch(
        rb"users: waiting for the copy to start; a cold Spark takes up to a minute \(\d+ s\)\n",
        await process.stderr.readline(),
    )
    process.send_signal(signal.SIGINT)
    said = (await process.stderr.read()).decode()
    assert "The snapshot of users continues" in said
    assert "--cancel" in said
    assert "Traceback" not in said
    assert await process.wait() not in (0, 1)
    await client.close()
