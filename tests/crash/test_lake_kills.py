"""A lake whose writer is killed at every step shows nothing in part, nothing twice, and loses
nothing.

Money moves between tables, so their sum is the same at every moment: a foreign reader adds it up in
every cut that it sees, while the writer is killed. `LAKE_KILLS` says how often.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from headrace.testing.suite import Suite
from tests.oracle.lake import ForeignLake
from tests.support.archiving import Archiving
from tests.support.lake import SERVICES, became_same, eventually, lake_environment
from tests.support.lake_load import SumReader, create_accounts, running, transfers

KILLS = int(os.environ.get("LAKE_KILLS", "6"))
STEPS = ("lake.before_write", "lake.before_commit", "lake.after_commit")
# It waits for a cut, which exists every 0.3 s.
DEATH_S = 60.0


async def test_every_cut_shows_one_moment_however_often_the_writer_is_killed(
    archiving: Archiving, tmp_path: Path
) -> None:
    database = archiving.database
    await create_accounts(database)
    lake = ForeignLake(tmp_path / "lake")
    reader = SumReader(ForeignLake(tmp_path / "lake"))
    rng = random.Random(7)
    environment = lake_environment(archiving, tmp_path)
    async with Suite(environment, tmp_path, SERVICES[:-1]) as suite:
        await suite.start("lake-writer", HEADRACE_FAILPOINT="lake.copied:3")
        async with running(transfers(database, 1), reader.read()):
            await died(suite)
            for kill in range(KILLS):
                step = STEPS[kill % len(STEPS)]
                await suite.start("lake-writer", HEADRACE_FAILPOINT=f"{step}:{rng.randrange(1, 4)}")
                await died(suite)
            await suite.start("lake-writer")
            seen = len(reader.cuts)
            await eventually(lambda: len(reader.cuts) >= seen + 3)
        assert not (wrong := await became_same(lake, database, suite)), wrong
    assert not reader.wrong
    assert len(reader.cuts) > KILLS


async def died(suite: Suite) -> None:
    await eventually(lambda: not suite.running("lake-writer"))
