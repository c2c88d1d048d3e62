"""The primary's disk is gone: the steps of docs/backup.md bring back what the metric promised."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
from pathlib import Path

import asyncpg
import pytest

from headrace.testing.scrape import figures, figures_when
from tests.support.time_machine import DATABASE, SERVICE, TimeMachine, machine, room

__all__ = ["machine", "room"]

PAGE = Path(__file__).parents[2] / "docs/backup.md"
COMMITS = 100


def runbook() -> list[list[str]]:
    """The commands of the page's section, in order."""
    text = PAGE.read_text()
    section = text.split("## The primary's disk is gone\n", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines() if line.strip()]


async def write(machine: TimeMachine, acknowledged: list[float], enough: asyncio.Event) -> None:
    """Commits one after the other; each one's time is before its successor's."""
    session = await asyncpg.connect(machine.server.dsn(DATABASE))
    statement = "INSERT INTO t VALUES ($1) RETURNING extract(epoch FROM clock_timestamp())::float8"
    try:
        while True:
            acknowledged.append(await session.fetchval(statement, len(acknowledged)))
            if len(acknowledged) >= COMMITS:
                enough.set()
            # Else the server takes a busy machine's whole time.
            await asyncio.sleep(0.01)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        session.terminate()


async def synchronous(machine: TimeMachine) -> None:
    """Let commits wait for the store."""
    await machine.execute("ALTER SYSTEM SET synchronous_standby_names = 'headrace_backup'")
    await machine.execute("SELECT pg_reload_conf()")
    waits = "SELECT sync_state FROM pg_stat_replication WHERE application_name = 'headrace_backup'"
    async with asyncio.timeout(60):
        while await machine.value(waits) != "sync":  # noqa: ASYNC110  # a view gives no event
            await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
async def test_the_runbook_brings_back_what_was_promised(machine: TimeMachine, mode: str) -> None:
    await machine.execute("CREATE TABLE t (n int PRIMARY KEY)")
    waits = mode == "synchronous"
    await machine.begin(HEADRACE_BACKUP_SYNCHRONOUS=str(waits).lower())
    await machine.backup()
    if waits:
        await synchronous(machine)
    acknowledged: list[float] = []
    enough = asyncio.Event()
    began = await machine.value("SELECT extract(epoch FROM clock_timestamp())::float8")
    writer = asyncio.create_task(write(machine, acknowledged, enough), name="writer")
    await asyncio.wait_for(enough.wait(), 120)
    # A claim about these commits, and then some more of them.
    name = "headrace_backup_stored_timestamp_seconds"
    await figures_when(machine.suite.log(SERVICE), lambda now: now[name] > began, 240)
    promised = (await figures(machine.suite.log(SERVICE)))[name]
    await asyncio.gather(machine.suite.kill(SERVICE), machine.server.kill())
    await writer
    await asyncio.to_thread(shutil.rmtree, machine.server.pgdata)
    kept = await follow_runbook(machine)
    # Each commit was over before the time of the next one.
    due = sum(time <= promised for time in acknowledged[1:])
    if waits:
        due = len(acknowledged)
    assert due > 0
    assert set(range(due)) <= kept
    # A commit that was in progress may have been stored.
    assert kept == set(range(len(kept)))
    assert len(kept) <= len(acknowledged) + 1


async def follow_runbook(machine: TimeMachine) -> set[int]:
    """Do what the page says, in another folder; returns the rows that came back."""
    folder = machine.room / "new"
    folder.mkdir(mode=0o711)
    machine.environment["HEADRACE_BACKUP_URL"] = machine.store.as_uri()
    steps = runbook()
    places = {
        "/srv/new": str(folder / "pgdata"),
        "s3://backups/shop-2": (machine.room / "store-2").as_uri(),
    }
    environment: dict[str, str] = {}
    begun = steps.index(["pg_ctl", "-D", "/srv/new", "start"])
    for step in steps[:begun]:
        await machine.run(*(places.get(word, word) for word in step[1:]))
    async with machine.serving(folder) as server:
        environment |= server.environment(DATABASE)
        for step in steps[begun + 1 :]:
            if step[0] == "export":
                name, _, value = step[1].partition("=")
                environment[name] = places[value]
            elif step[1] == SERVICE:
                await machine.suite.start(SERVICE, **environment)
            else:
                await machine.run(*step[1:], code=0, **environment)
        session = await asyncpg.connect(server.dsn(DATABASE))
        kept = {row["n"] for row in await session.fetch("SELECT n FROM t")}
        # It takes writes: it waits for no standby of the old one.
        await session.execute("INSERT INTO t VALUES (-1)")
        await session.close()
        await machine.suite.stop(SERVICE)
    assert (machine.room / "store-2" / "backups").is_dir()
    return kept
