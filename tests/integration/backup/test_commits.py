"""The commits that are found in the log are those that pg_waldump finds."""

from __future__ import annotations

import asyncio
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from headrace.backup.commits import CommitRecord, CommitScan
from headrace.backup.programs import binaries
from headrace.embedded.postgres_install import PostgresVersion
from headrace.lsn import format_lsn, parse_lsn
from headrace.testing.plugin import OwnPostgres

SIZE = 16 << 20
LINE = re.compile(r"tx: +(\d+), lsn: ([0-9A-F/]+), .*desc: (COMMIT|COMMIT_PREPARED) (.*)")
DROPPED = re.compile(r"dropped stats:((?: 2/\d+/\d+| \d+/\d+/\d+)+)")

HISTORY = """
CREATE TABLE a (id int PRIMARY KEY, v text);
INSERT INTO a SELECT n, repeat(md5(n::text), 20) FROM generate_series(1, 20000) n;
DROP TABLE a;
CREATE TABLE b (id int PRIMARY KEY);
DO $$ BEGIN FOR n IN 1..3000 LOOP INSERT INTO b VALUES (n); COMMIT; END LOOP; END $$;
DO $$ BEGIN FOR n IN 1..100 LOOP
  BEGIN INSERT INTO b VALUES (-n); EXCEPTION WHEN division_by_zero THEN NULL; END;
END LOOP; END $$;
TRUNCATE b;
DROP TABLE b;
"""


def dumped(program: Path, folder: Path, first: str, last: str) -> dict[str, tuple[int, set[str]]]:
    done = subprocess.run(
        [program, "-r", "Transaction", folder / first, folder / last],
        capture_output=True,
        text=True,
        check=False,
    )
    found = {}
    for line in done.stdout.splitlines():
        if match := LINE.search(line):
            stats = DROPPED.search(match[4])
            items = set(stats[1].split()) if stats else set()
            relations = {item[2:] for item in items if item.startswith("2/")}
            found[format_lsn(parse_lsn(match[2]))] = (int(match[1]), relations)
    return found


def scanned(folder: Path, names: list[str], version: int, step: int) -> list[CommitRecord]:
    scan = CommitScan(SIZE, version)
    found: list[CommitRecord] = []
    for name in names:
        begin = (int(name[8:16], 16) << 32) + int(name[16:], 16) * SIZE
        content = (folder / name).read_bytes()
        for offset in range(0, SIZE, step):
            found += scan.read(begin + offset, content[offset : offset + step])
    return found


@pytest.mark.parametrize("pg_version", [16, 18], indirect=True)
async def test_commits_and_drops_are_those_of_pg_waldump(
    own_postgres: OwnPostgres, pg_version: PostgresVersion
) -> None:
    server = await own_postgres()
    program = binaries(None, pg_version, None)
    psql: list[str | Path] = [program / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", server.dsn()]
    history = HISTORY.encode()
    done = await asyncio.to_thread(lambda: subprocess.run(psql, input=history, check=False))
    assert done.returncode == 0
    await server.stop()
    wal = server.pgdata / "pg_wal"
    names = sorted(path.name for path in wal.iterdir() if len(path.name) == 24)
    with tempfile.TemporaryDirectory() as copy:
        for name in names:
            (Path(copy) / name).write_bytes((wal / name).read_bytes())
        expected = dumped(program / "pg_waldump", Path(copy), names[0], names[-1])
        assert len(expected) > 3000
        for step in (SIZE, 8192 * 3, 40_000):
            found = scanned(Path(copy), names, pg_version, step)
            assert {
                format_lsn(one.lsn): (
                    one.xid,
                    {f"{database}/{oid}" for database, oid in one.dropped},
                )
                for one in found
                # Recycled segments have the log of an earlier life.
                if format_lsn(one.lsn) in expected
            } == expected
            assert len(found) == len({one.lsn for one in found})
