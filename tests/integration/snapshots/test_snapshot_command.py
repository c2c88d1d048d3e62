"""`headrace snapshot` with a real responder: its output agrees with the content of JetStream."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from headrace.testing.responder import RESULT_TIMEOUT_S, Consumer, Responder

pytestmark = pytest.mark.spark


async def headrace(responder: Responder, *arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("headrace"),
        "snapshot",
        *arguments,
        env=responder.environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(RESULT_TIMEOUT_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_snapshot_is_asked_for_and_told_as_it_lies_in_the_stream(
    responder: Responder, consumer: Consumer
) -> None:
    await consumer.publish("(id int, name text)", "asked")
    await consumer.sql.execute("INSERT INTO asked SELECT g, 'n' FROM generate_series(1, 12000) g")
    code, out, err = await headrace(
        responder, "asked", "--json", "--columns", "id", "--filter", '[["id", ">", 1000]]', "--text"
    )
    assert code == 0, err
    told = json.loads(out)
    snapshot = await consumer.result(told["snapshot_id"])
    assert (told["row_count"], len(snapshot.rows)) == (11000, 11000)
    assert set(snapshot.rows[0]) == {"id"}
    assert told["lsn"] == snapshot.meta["lsn"]
    assert told["subject"] == f"init.snap.asked.{told['snapshot_id']}.*"


async def test_a_refusal_and_a_bad_option_are_one_line_with_the_remedy(
    responder: Responder,
) -> None:
    code, _, err = await headrace(responder, "nosuch")
    assert code == 1
    assert "nosuch doesn't exist" in err
    assert err.count("\n") == 1
    code, _, err = await headrace(responder, "asked", "--filter", "id > 3")
    assert code == 1
    assert "--filter is not JSON" in err
    assert err.count("\n") == 1


async def test_cancelling_where_nothing_runs_says_so(responder: Responder) -> None:
    code, out, err = await headrace(responder, "idle_one", "--cancel")
    assert code == 0, err
    assert "no snapshot is running" in out
