"""The archive contains exactly what was committed, with no file missing, even if any process is
killed while it is written.

`HEADRACE_ARCHIVE_CRASH_ROWS` is the minimal number of rows that are written while the archiver and
the store are killed in a loop (60,000 by default; a million is the long profile, `./taskw
test:archive`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
from pathlib import Path

import pytest

from headrace.archive import RowEntry, WalGapError, WalReader, WalReaderOptions
from headrace.lsn import format_lsn
from headrace.testing.database import Database
from headrace.testing.oracle import Change
from headrace.testing.s3 import S3Server
from headrace.testing.suite import Suite
from tests.support.archiving import (
    WITH_ARCHIVE,
    Archiving,
    archived,
    as_change,
    changes,
)
from tests.support.exactly_once import write

ROWS = int(os.environ.get("HEADRACE_ARCHIVE_CRASH_ROWS", "60000"))


def check_files(url: str, options: WalReaderOptions) -> None:
    """Ids without gaps, epochs that only rise, a chain of checksums."""
    reader = WalReader(url, options)
    files = list(reader.files())
    assert [file.id for file in files] == list(range(1, len(files) + 1))
    infos = [file.info for file in files]
    assert [info.epoch for info in infos] == sorted(info.epoch for info in infos)
    assert [info.previous for info in infos[1:]] == [info.checksum for info in infos[:-1]]
    assert all(later.first > earlier.last for earlier, later in itertools.pairwise(infos))


async def settled(url: str, options: WalReaderOptions, committed: list[Change]) -> list[RowEntry]:
    found: list[RowEntry] = await archived(url, committed, timeout_s=90, options=options)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_nothing_is_missing_or_doubled_when_archiver_and_store_are_killed_in_a_loop(
    archiving: Archiving, s3: S3Server, tmp_path: Path
) -> None:
    database, oracle = archiving.database, archiving.oracle
    url, options = s3.url("log"), WalReaderOptions(store_options=s3.options())
    settings = archiving.environment(
        HEADRACE_ARCHIVE_URL=url,
        HEADRACE_ARCHIVE_REQUIRED="true",
        HEADRACE_ARCHIVE_FILE_ROWS_MAX="4000",
    )
    chance = random.Random(7)
    async with Suite({**settings, **s3.environment()}, tmp_path, WITH_ARCHIVE) as suite:
        await suite.logged("archiver", "epoch_joined")
        writer = asyncio.create_task(write(database.server, ROWS, seed=3))
        kills = 0
        while not writer.done() or kills < 8:
            await asyncio.sleep(chance.uniform(0.3, 1.2))
            victim = chance.choice(("archiver", "archiver", "s3", "s3", "wal-reader", "publisher"))
            if victim == "s3":
                await s3.kill()
                await asyncio.sleep(chance.uniform(0.0, 0.8))
                await s3.start()
            else:
                await suite.kill(victim)
                await suite.start(victim)
            kills += 1
        await writer
        committed = await oracle.changes()
        found = await settled(url, options, committed)
        assert len(committed) >= ROWS
        assert changes(found) == committed, "\n".join(
            suite.log(service)[-3000:] for service in WITH_ARCHIVE
        )
        check_files(url, options)
        print(f"{len(committed)} changes, {kills} kills")


@pytest.mark.parametrize("place", ["archiver.before_put:2", "archiver.after_put_before_confirm:2"])
async def test_a_kill_at_a_step_of_writing_repeats_or_resumes_exactly_once(
    archiving: Archiving, tmp_path: Path, place: str
) -> None:
    database, oracle, url = archiving.database, archiving.oracle, archiving.url
    settings = archiving.environment(
        HEADRACE_ARCHIVE_REQUIRED="true", HEADRACE_ARCHIVE_FILE_ROWS_MAX="500"
    )
    async with Suite(settings, tmp_path) as suite:
        await suite.start("archiver", HEADRACE_FAILPOINT=place)
        await suite.logged("archiver", "epoch_joined")
        for first in range(0, 3000, 1000):
            await database.execute(
                f"INSERT INTO orders SELECT g, 1, 'x' FROM generate_series({first}, {first + 999}) "
                "g"
            )
        assert await suite.exit_code("archiver", 30) < 0
        await suite.start("archiver")
        committed = await oracle.changes()
        found = await archived(url, committed)
        assert changes(found) == committed
        check_files(url, WalReaderOptions())


async def test_an_archiver_that_wakes_up_beside_its_heir_doubles_nothing(
    archiving: Archiving, tmp_path: Path
) -> None:
    database, oracle, url = archiving.database, archiving.oracle, archiving.url
    settings = archiving.environment(
        HEADRACE_ARCHIVE_REQUIRED="true", HEADRACE_ARCHIVE_FILE_ROWS_MAX="300"
    )
    (tmp_path / "heir").mkdir()
    async with (
        Suite(settings, tmp_path, WITH_ARCHIVE) as suite,
        Suite(settings, tmp_path / "heir", ()) as heirs,
    ):
        await suite.logged("archiver", "epoch_joined")
        writer = asyncio.create_task(write(database.server, 20_000, seed=11))
        await asyncio.sleep(0.5)
        os.kill(suite.pid("archiver"), signal.SIGSTOP)
        await heirs.start("archiver")
        await heirs.logged("archiver", "epoch_joined", timeout_s=60)
        os.kill(suite.pid("archiver"), signal.SIGCONT)
        await writer
        committed = await oracle.changes()
        found = await archived(url, committed)
        assert changes(found) == committed
        check_files(url, WalReaderOptions())


async def confirmed_past(database: Database, slot: str, lsn: int, timeout_s: float = 60.0) -> None:
    """Wait until PostgreSQL may forget what was before."""
    async with asyncio.timeout(timeout_s):
        while True:
            rows = await database.fetch(
                (
                    "SELECT (confirmed_flush_lsn - '0/0')::bigint AS lsn FROM pg_replication_slots "
                    "WHERE slot_name = $1"
                ),
                slot,
            )
            if rows[0]["lsn"] > lsn:
                return
            await asyncio.sleep(0.1)


async def here(database: Database) -> int:
    rows = await database.fetch("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint AS lsn")
    return int(rows[0]["lsn"])


def optional_line(archiving: Archiving, folder: Path, patience: str) -> Suite:
    settings = archiving.environment(HEADRACE_ARCHIVE_PATIENCE_S=patience)
    return Suite(settings, folder, WITH_ARCHIVE)


async def test_an_optional_archive_that_is_away_for_long_holds_nobody_and_tells_the_gap(
    archiving: Archiving, tmp_path: Path
) -> None:
    database, oracle, url = archiving.database, archiving.oracle, archiving.url
    async with optional_line(archiving, tmp_path, "1") as suite:
        await suite.logged("archiver", "epoch_joined")
        other = await database.connect()
        await other.execute("BEGIN; INSERT INTO orders VALUES (2, 2, 'missed')")
        await database.execute("INSERT INTO orders VALUES (1, 1, 'kept')")
        before = await oracle.changes()
        assert changes(await archived(url, before)) == before
        await suite.kill("archiver")
        # Its commit record begins where the last one ended: at the gap's first LSN, unless the
        # server wrote in between.
        await other.execute("COMMIT")
        await other.close()
        missed = await oracle.changes()
        await confirmed_past(database, f"slot_{database.name}", await here(database) - 1)
        await suite.start("archiver")
        await suite.logged("archiver", "event=gap", timeout_s=60)
        await database.execute("INSERT INTO orders VALUES (3, 3, 'kept again')")
        after = await oracle.changes()
        options = WalReaderOptions(raise_at_gap=False)
        found = await archived(url, before + after, options=options)
    assert changes(found) == before + after
    gaps = [entry.after for entry in found if entry.operation == "gap"]
    assert len(gaps) == 1
    assert gaps[0] is not None
    begins, ends = gaps[0]["after"], gaps[0]["up_to"]
    assert (
        before[-1].position.lsn < begins <= missed[0].position.lsn < ends <= after[0].position.lsn
    )
    with pytest.raises(
        WalGapError, match=f"from {format_lsn(begins)} to before {format_lsn(ends)} are not"
    ):
        list(WalReader(url).follow(from_lsn=missed[0].position.lsn, wait=False))
    with pytest.raises(WalGapError):
        list(WalReader(url).follow(from_lsn=ends - 1, wait=False))
    assert changes(WalReader(url).follow(from_lsn=ends, wait=False)) == after
    with contextlib.suppress(WalGapError):
        # The changes before the gap are read.
        for entry in WalReader(url).follow(from_lsn=before[-1].position.lsn, wait=False):
            assert as_change(entry) in before
    with pytest.raises(WalGapError):
        list(WalReader(url).follow(wait=False))


async def test_an_optional_archive_that_is_back_within_the_patience_misses_nothing(
    archiving: Archiving, tmp_path: Path
) -> None:
    database, oracle, url = archiving.database, archiving.oracle, archiving.url
    async with optional_line(archiving, tmp_path, "120") as suite:
        await suite.logged("archiver", "epoch_joined")
        for number in range(3):
            await suite.kill("archiver")
            await database.execute(
                f"INSERT INTO orders VALUES ({number}, 1, 'written while it is away')"
            )
            await suite.start("archiver")
        committed = await oracle.changes()
        assert changes(await archived(url, committed)) == committed
