"""The archive contains exactly what PostgreSQL committed, in commit order, optional or required,
even if any process is killed.
"""

from __future__ import annotations

from pathlib import Path

from headrace.testing.database import Database
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.suite import Suite
from tests.support.archiving import (
    SCRIPT,
    WITH_ARCHIVE,
    archived,
    changes,
    environment,
    prepare,
)


async def test_the_archive_holds_what_was_committed_in_commit_order(
    own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path
) -> None:
    postgres, nats_server = await own_postgres(), await own_nats()
    database = Database(postgres, "postgres")
    oracle = await prepare(database)
    url = f"file://{tmp_path}/archive"
    async with Suite(
        environment(database, nats_server.url, url, HEADRACE_ARCHIVE_REQUIRED="true"),
        tmp_path,
        WITH_ARCHIVE,
    ) as suite:
        await suite.logged("archiver", "epoch_joined")
        for statement in SCRIPT:
            await database.execute(statement)
        committed = await oracle.changes()
        found = await archived(url, committed)
    assert changes(found) == committed, suite.log("archiver")[-3000:]
    await database.close()
