"""A store in a bucket: the log survives the store's kills, and a refusal names the setting.

`BUCKET_KILLS` says how often its server is killed.
"""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from headrace.testing.s3 import S3Server
from tests.support.time_machine import SERVICE, TimeMachine

KILLS = int(os.environ.get("BUCKET_KILLS", "2"))


@pytest.mark.timeout(300 + 20 * KILLS)
async def test_a_bucket_that_is_killed_loses_nothing_and_its_cluster_comes_back(
    machine: TimeMachine, s3: S3Server
) -> None:
    machine.environment |= {**s3.environment(), "HEADRACE_BACKUP_URL": s3.url("shop")}
    machine.suite = machine.suite_with(machine.environment)
    await machine.execute("CREATE TABLE t (n int)")
    await machine.begin()
    await machine.backup()
    for _ in range(KILLS):
        await machine.execute("INSERT INTO t SELECT generate_series(1, 10000)")
        before = machine.suite.log(SERVICE).count("part=store")
        await s3.kill()
        await machine.execute("INSERT INTO t SELECT generate_series(1, 10000)")
        async with asyncio.timeout(120):
            while machine.suite.log(SERVICE).count("part=store") == before:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await s3.start()
        await machine.stored(240)
    assert json.loads((await machine.run("backup", "status", "--json")).out)["holes"] == []
    await machine.run("backup", "verify")
    assert await machine.restored_digests() == await machine.digests()


async def test_a_bucket_that_refuses_is_one_error_that_names_the_setting(
    machine: TimeMachine, s3: S3Server
) -> None:
    machine.environment |= {**s3.environment(), "HEADRACE_BACKUP_URL": s3.url("shop")}
    refused = await machine.run("backup", "init", code=1, AWS_SECRET_ACCESS_KEY="wrong")
    assert "HEADRACE_BACKUP_URL" in refused.err
    assert "Traceback" not in refused.err
    missing = await machine.run("backup", "ls", code=1)
    assert "`headrace backup init`" in missing.err
    slots = await machine.value("SELECT count(*) FROM pg_replication_slots")
    assert slots == 0
