"""The archive contains exactly what PostgreSQL committed, in commit order, optional or required,
even if any process is killed.
"""

from __future__ import annotations

from pathlib import Path

from headrace.testing.suite import Suite
from tests.support.archiving import (
    SCRIPT,
    WITH_ARCHIVE,
    Archiving,
    archived,
    changes,
)


async def test_the_archive_holds_what_was_committed_in_commit_order(
    archiving: Archiving, tmp_path: Path
) -> None:
    database, oracle, url = archiving.database, archiving.oracle, archiving.url
    async with Suite(
        archiving.environment(HEADRACE_ARCHIVE_REQUIRED="true"),
        tmp_path,
        WITH_ARCHIVE,
    ) as suite:
        await suite.logged("archiver", "epoch_joined")
        for statement in SCRIPT:
            await database.execute(statement)
        committed = await oracle.changes()
        found = await archived(url, committed)
    assert changes(found) == committed, suite.log("archiver")[-3000:]
