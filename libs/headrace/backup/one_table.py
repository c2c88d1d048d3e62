"""One table of a restored cluster into another database, with pg_dump and psql.

Promises that the table arrives as a whole or not at all, under a name that is free, with its
indexes, defaults and constraints; foreign keys and triggers are left out, because they would tie
it to rows of another moment. Nothing else in the target is touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psycopg
from psycopg import sql

from headrace.backup.errors import RestoreError
from headrace.backup.recovery import RestoredServer

_COPY_BYTES = 1 << 20
# PostgreSQL cuts a longer name without an error.
_NAME_BYTES_MAX = 63

_TABLE = """
SELECT c.oid, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""
_LEFT_OUT = """
SELECT 'foreign key ' || conname FROM pg_constraint
WHERE contype = 'f' AND (conrelid = %(oid)s OR confrelid = %(oid)s) AND conparentid = 0
UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = %(oid)s AND NOT tgisinternal
ORDER BY 1
"""
_FOREIGN_KEYS = """
SELECT conrelid::regclass::text, conname FROM pg_constraint
WHERE contype = 'f' AND (conrelid = %(oid)s OR confrelid = %(oid)s) AND conparentid = 0
"""
_TRIGGERS = "SELECT tgname FROM pg_trigger WHERE tgrelid = %(oid)s AND NOT tgisinternal"
# Indexes with their constraints, sequences and statistics: their names are unique in the schema.
_OWNED = """
SELECT 'INDEX' AS kind, c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = %(oid)s
UNION ALL
SELECT 'SEQUENCE', c.relname FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
WHERE d.refobjid = %(oid)s AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
  AND d.classid = 'pg_class'::regclass AND c.relkind = 'S'
UNION ALL
SELECT 'STATISTICS', stxname FROM pg_statistic_ext WHERE stxrelid = %(oid)s
"""


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """What has arrived."""

    schema: str
    name: str
    # Counted in the restored cluster, before the copy.
    rows: int
    # Foreign keys and triggers that the copy doesn't have.
    left_out: tuple[str, ...]


def copy_table(
    server: RestoredServer,
    programs: Path,
    database: str,
    table: tuple[str, str],
    name: str,
    target: Mapping[str, str],
) -> CopiedTable:
    """Copy a table of the restored cluster; `target` are libpq's variables of the other server."""
    schema, former = table
    with psycopg.connect(server.conninfo(database), autocommit=True) as session:
        oid = _oid(session, schema, former)
        # In the restored cluster, which is discarded: the dump then has neither.
        left_out = _detach(session, oid)
        _rename(session, schema, former, name, oid)
        rows = _count(session, schema, name)
    _dump_into(server, programs, database, (schema, name), target)
    return CopiedTable(schema, name, rows, left_out)


def _oid(session: psycopg.Connection, schema: str, name: str) -> int:
    row = session.execute(_TABLE, (schema, name)).fetchone()
    if row is None:
        raise RestoreError(
            f"there is no table {schema}.{name} at that moment",
            remedy="Check its name, or name another moment.",
        )
    # pg_dump of a partitioned table has no rows, and a view has none either.
    if row[1] != "r":
        raise RestoreError(
            f"{schema}.{name} is not an ordinary table",
            remedy="Restore the partitions one by one, or the whole cluster with --to.",
        )
    return int(row[0])


def _detach(session: psycopg.Connection, oid: int) -> tuple[str, ...]:
    """Drop what ties the table to others, in the restored cluster."""
    given = {"oid": oid}
    left_out = tuple(row[0] for row in session.execute(_LEFT_OUT, given))
    for owner, key in session.execute(_FOREIGN_KEYS, given).fetchall():
        # `owner` is a regclass's text, which is quoted where necessary.
        drop = sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}")
        session.execute(drop.format(sql.SQL(owner), sql.Identifier(key)))
    (own,) = session.execute("SELECT %s::regclass::text", (oid,)).fetchone() or ("",)
    for (trigger,) in session.execute(_TRIGGERS, given).fetchall():
        drop = sql.SQL("DROP TRIGGER {} ON {}")
        session.execute(drop.format(sql.Identifier(trigger), sql.SQL(own)))
    return left_out


def _rename(session: psycopg.Connection, schema: str, former: str, name: str, oid: int) -> None:
    """Give the table its new name, and everything whose name must be unique in the schema."""
    if name == former:
        return
    owned = session.execute(_OWNED, {"oid": oid}).fetchall()
    for kind, old in owned:
        new = _renamed(old, former, name)
        statement = sql.SQL(f"ALTER {kind} {{}}.{{}} RENAME TO {{}}")
        session.execute(
            statement.format(sql.Identifier(schema), sql.Identifier(old), sql.Identifier(new))
        )
    rename = sql.SQL("ALTER TABLE {}.{} RENAME TO {}")
    session.execute(
        rename.format(sql.Identifier(schema), sql.Identifier(former), sql.Identifier(name))
    )


def _renamed(old: str, former: str, name: str) -> str:
    """`orders_pkey` becomes `orders_restored_pkey`; a name without the table's gets it in front."""
    if old.startswith(former):
        new = name + old.removeprefix(former)
    else:
        new = f"{name}_{old}"
    if len(new.encode()) > _NAME_BYTES_MAX:
        raise RestoreError(
            f"the name {new} is too long for PostgreSQL",
            remedy="Name a shorter one with --as.",
        )
    return new


def _count(session: psycopg.Connection, schema: str, name: str) -> int:
    statement = sql.SQL("SELECT count(*) FROM {}.{}")
    row = session.execute(statement.format(sql.Identifier(schema), sql.Identifier(name))).fetchone()
    return int(row[0]) if row else 0


def _dump_into(
    server: RestoredServer,
    programs: Path,
    database: str,
    table: tuple[str, str],
    target: Mapping[str, str],
) -> None:
    # Variables of the caller must not lead a program to another server.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    # Quoted: pg_dump takes a pattern, in which other characters have a meaning.
    pattern = ".".join('"' + part.replace('"', '""') + '"' for part in table)
    # Neither owner nor privileges: their roles may not exist in the target.
    dump: list[str | Path] = [
        programs / "pg_dump",
        "--no-owner",
        "--no-privileges",
        f"--table={pattern}",
    ]
    load: list[str | Path] = [programs / "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1"]
    with tempfile.TemporaryFile() as dump_said, tempfile.TemporaryFile() as load_said:
        with (
            subprocess.Popen(
                dump,
                env={**kept, **server.environment(database)},
                stdout=subprocess.PIPE,
                stderr=dump_said,
            ) as dumping,
            subprocess.Popen(
                load,
                env={**kept, **target},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=load_said,
            ) as loading,
        ):
            _pass_on(dumping, loading)
        # The other's end is the consequence.
        _check("psql", loading.returncode, load_said)
        _check("pg_dump", dumping.returncode, dump_said)


def _pass_on(dumping: subprocess.Popen[bytes], loading: subprocess.Popen[bytes]) -> None:
    """The dump as one transaction, which is committed only if the dump is complete."""
    assert dumping.stdout is not None, "a pipe"
    assert loading.stdin is not None, "a pipe"
    # If psql ends early, its error is the one to report.
    with contextlib.suppress(BrokenPipeError):
        loading.stdin.write(b"BEGIN;\n")
        shutil.copyfileobj(dumping.stdout, loading.stdin, _COPY_BYTES)
        if dumping.wait() == 0:
            loading.stdin.write(b"COMMIT;\n")
    dumping.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        loading.stdin.close()


def _check(program: str, status: int, said: IO[bytes]) -> None:
    if status != 0:
        said.seek(0)
        lines = " ".join(said.read().decode(errors="replace").splitlines()[:3])
        raise RestoreError(
            f"{program} ended with status {status}: {lines}",
            remedy="Nothing was changed. Remove the cause, or name another place with --into.",
        )
