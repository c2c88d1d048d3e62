"""A sink that is killed at each of its steps delivers every change exactly once, and whole
transactions.
"""

from __future__ import annotations

import asyncio
import itertools
from itertools import groupby
from pathlib import Path

import pytest

from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import Suite
from tests.support.exactly_once import environment, prepare, write
from tests.support.sink_kills import KILLS
from tests.support.sinks import changes_of, events_of, sink_process

STEPS = (
    "sink.before_write",
    "files.written",
    "sink.before_commit",
    "files.before_create",
    "files.created",
    "sink.committed",
)
# `KILLS` of this sink in all three forms together, and each step at least once in each form.
KILLS_A_FORM = max(len(STEPS), -(-KILLS // 3))
WAIT_S = 60


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("form", "delivery"),
    [("ndjson", "event"), ("parquet", "transaction"), ("ndjson", "batch")],
    ids=["ndjson", "parquet", "arrays"],
)
async def test_files_have_every_change_once_though_the_sink_is_killed_at_each_step(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path, form: str, delivery: str
) -> None:
    postgres = await own_postgres()
    nats = await own_nats()
    database, oracle = await prepare(postgres)
    settings = environment(postgres, nats, delivery)
    folder = tmp_path / "changes"
    folder.mkdir()
    config = tmp_path / "headrace.toml"
    config.write_text(
        f'[[sink]]\nname = "files"\nto = "{folder.as_uri()}"\n'
        f'batch = {{events = 500, wait_ms = 50}}\n[sink.options]\nform = "{form}"\n'
    )
    async with Suite(settings, tmp_path) as suite:
        await suite.logged("wal-reader", "epoch_opened")
        enough = asyncio.Event()
        writer = asyncio.create_task(write(postgres, 4000, 1, enough=enough), name="writer")
        for step in itertools.islice(itertools.cycle(STEPS), KILLS_A_FORM):
            async with sink_process(
                settings, config, "files", HEADRACE_FAILPOINT=f"{step}:2"
            ) as one:
                assert await one.exit_code(WAIT_S) == -9, one.output[-3000:]
        enough.set()
        await writer
        committed = await oracle.changes()
        await database.close()
        async with sink_process(settings, config, "files") as last:
            await last.logged("event=sink_follows")
            async with asyncio.timeout(WAIT_S):
                while len(changes_of(events_of(folder))) < len(committed):
                    assert last.running, last.output[-3000:]
                    await asyncio.sleep(0.2)
            assert await last.stop() == 0
    found = changes_of(events_of(folder))
    assert found == committed
    ends = [
        list(events)[-1]
        for _, events in groupby(events_of(folder), key=lambda event: event["tx"]["lsn"])
    ]
    assert [one for one in ends if one["tx"]["xid"] and not one["tx"]["last"]] == [], (
        "only whole transactions"
    )
