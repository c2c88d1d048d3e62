"""Every kind of change reaches the lake: compared with PostgreSQL's text of each row."""

from __future__ import annotations

from pathlib import Path

from headrace.testing.suite import Suite
from tests.oracle.lake import ForeignLake
from tests.support.archiving import Archiving
from tests.support.hastened import hastened
from tests.support.lake import SERVICES, became_same, lake_environment

# New, renamed and dropped tables are noticed sooner.
QUICK = hastened({"headrace.lake_writer.follower.TABLES_S": 0.5})
SETUP = """
CREATE TABLE keyed (id bigint PRIMARY KEY, n int, note text);
CREATE TABLE composite (a text, until date, n int, PRIMARY KEY (a, until));
CREATE TABLE large (id int PRIMARY KEY, big text, other text, n int);
ALTER TABLE large ALTER big SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL;
CREATE TABLE logged (at int, what text);
CREATE TABLE rows_full (a int, b text);
ALTER TABLE rows_full REPLICA IDENTITY FULL;
CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, n int);
ALTER TABLE deferred REPLICA IDENTITY FULL;
CREATE TABLE indexed (id int, code text NOT NULL, n int);
CREATE UNIQUE INDEX indexed_code ON indexed (code);
ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_code;
CREATE TABLE parts (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (100);
CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (100) TO (200);
INSERT INTO keyed SELECT g, g, 'copied' FROM generate_series(1, 100) g;
INSERT INTO large SELECT g, repeat('x' || g, 3000), repeat('y' || g, 3000), g
  FROM generate_series(1, 20) g;
INSERT INTO rows_full VALUES (1, 'same'), (1, 'same'), (1, 'same'), (2, NULL);
INSERT INTO deferred SELECT g, g FROM generate_series(1, 5) g;
INSERT INTO composite VALUES ('x', 'infinity', 1), ('y', '2020-01-01', 1);
INSERT INTO indexed VALUES (1, 'one', 1), (2, 'two', 2);
CREATE PUBLICATION headrace FOR ALL TABLES;
"""
CHANGES = {
    "an update and a delete": "UPDATE keyed SET n = -n WHERE id < 10; DELETE FROM keyed WHERE id > 95",
    "keys that move": "UPDATE keyed SET id = id + 1000 WHERE id BETWEEN 20 AND 30",
    "two keys that are exchanged": """
        UPDATE keyed SET id = -1 WHERE id = 1; UPDATE keyed SET id = 1 WHERE id = 2;
        UPDATE keyed SET id = 2 WHERE id = -1""",
    "a row that comes and goes": "INSERT INTO keyed VALUES (5000, 1); DELETE FROM keyed WHERE id = 5000",
    "a row that goes and comes": "DELETE FROM keyed WHERE id = 3; INSERT INTO keyed VALUES (3, 33, 'again')",
    "a row that changes often": "".join(
        f"UPDATE keyed SET n = {n} WHERE id = 4;" for n in range(50)
    ),
    "a large value that did not change": "UPDATE large SET n = n + 100 WHERE id < 5",
    "a large value that did not change, after one that did": """
        UPDATE large SET big = repeat('new', 2000) WHERE id = 6; UPDATE large SET n = 7 WHERE id = 6;
        UPDATE large SET other = repeat('more', 2000) WHERE id = 6; UPDATE large SET n = 8 WHERE id = 6""",
    "a large value under a new key": "UPDATE large SET id = id + 100 WHERE id BETWEEN 8 AND 10",
    "a large value under two new keys": """
        UPDATE large SET id = 301 WHERE id = 11; UPDATE large SET id = 302, n = 0 WHERE id = 301;
        UPDATE large SET n = 1 WHERE id = 302""",
    "a table without a key": "INSERT INTO logged VALUES (1, 'a'), (1, 'a'), (2, NULL)",
    "equal rows": "DELETE FROM rows_full WHERE ctid = (SELECT min(ctid) FROM rows_full WHERE a = 1)",
    "equal rows that change": """
        UPDATE rows_full SET b = 'other' WHERE ctid = (SELECT min(ctid) FROM rows_full WHERE a = 1);
        UPDATE rows_full SET a = NULL WHERE b IS NULL; INSERT INTO rows_full VALUES (1, 'same')""",
    "keys that are taken twice until the commit": "UPDATE deferred SET id = id + 1",
    "a key that a date can't hold": """
        UPDATE composite SET n = 2 WHERE until = 'infinity'; DELETE FROM composite WHERE a = 'y';
        INSERT INTO composite VALUES ('x', '-infinity', 3), ('x', '2020-01-01', 4)""",
    "another of these keys": "DELETE FROM composite WHERE a = 'x' AND until = '-infinity'",
    "a key by an index": "UPDATE indexed SET code = 'eins' WHERE id = 1; DELETE FROM indexed WHERE id = 2",
    "a partition": "INSERT INTO parts SELECT g, g FROM generate_series(50, 150) g",
    "a row that changes its partition": "UPDATE parts SET id = id + 100 WHERE id = 60",
    "TRUNCATE between changes": """
        INSERT INTO keyed VALUES (9001, 1); TRUNCATE keyed; INSERT INTO keyed VALUES (9002, 2)""",
    "a transaction larger than a file": "INSERT INTO keyed SELECT g, g, 'many' FROM generate_series(10000, 16000) g",
    "a large update": "UPDATE keyed SET n = n * 2 WHERE id % 2 = 0",
    "an added column": "ALTER TABLE keyed ADD COLUMN extra int; INSERT INTO keyed VALUES (1, 1, 'x', 7)",
    "an added column with a default": """
        ALTER TABLE keyed ADD COLUMN kind text DEFAULT 'plain'; UPDATE keyed SET n = 0 WHERE id = 1""",
    "a renamed column": "ALTER TABLE keyed RENAME note TO remark; UPDATE keyed SET remark = 'renamed' WHERE id = 1",
    "a dropped column": "ALTER TABLE keyed DROP COLUMN extra; UPDATE keyed SET n = 3 WHERE id = 1",
    "a column that is replaced": """
        ALTER TABLE keyed DROP COLUMN kind, ADD COLUMN kind text; UPDATE keyed SET kind = 'k' WHERE id = 1""",
    "another type": "ALTER TABLE keyed ALTER n TYPE bigint USING n * 10; UPDATE keyed SET n = 5 WHERE id = 1",
    "a rewrite of the same type": "ALTER TABLE keyed ALTER n TYPE bigint USING n + 7; UPDATE keyed SET n = n WHERE id = 1",
    "a rewrite that no row follows": "ALTER TABLE indexed ALTER n TYPE int USING n * 3",
    "two tables that exchange their names": """
        ALTER TABLE keyed RENAME TO keyed_; ALTER TABLE deferred RENAME TO keyed; ALTER TABLE keyed_ RENAME TO deferred;
        UPDATE deferred SET n = 0 WHERE id = 1""",
    "a new table": "CREATE TABLE late (id int PRIMARY KEY, t text); INSERT INTO late VALUES (1, 'x')",
    "a renamed table": "ALTER TABLE late RENAME TO later; INSERT INTO later VALUES (2, 'y')",
    "a dropped table": "DROP TABLE later",
}


async def test_every_kind_of_change_reaches_the_lake(archiving: Archiving, tmp_path: Path) -> None:
    database = archiving.database
    await database.execute("DROP PUBLICATION headrace; DROP TABLE orders, items, full_rows")
    await database.execute(SETUP)
    lake = ForeignLake(tmp_path / "lake")
    environment = lake_environment(archiving, tmp_path, HEADRACE_ARCHIVE_FILE_ROWS_MAX="1000")
    async with (
        Suite(environment, tmp_path, SERVICES[:-1]),
        Suite(environment, tmp_path, SERVICES[-1:], program=QUICK) as suite,
    ):
        assert not (wrong := await became_same(lake, database, suite)), ("the copies", wrong)
        for name, statements in CHANGES.items():
            await database.execute(statements)
            assert not (wrong := await became_same(lake, database, suite)), (name, wrong)
