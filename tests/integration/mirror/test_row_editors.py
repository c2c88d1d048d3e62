"""A repair's editor of rows: it leaves marked rows, keeps the mirror's process out, and writes
nothing unless it commits. Targets are read by their own clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from headrace.mirror import Column, CreateTable, InsertRows, Table, TargetError
from headrace.mirror import sqlite as sqlite_target
from headrace.mirror.row_editor import edited
from headrace.mirror.rules import TableRules
from headrace.mirror.target import ReadableTarget, target_of
from headrace.testing.mariadb import MariadbServer

COLUMNS = (
    Column("id", "integer"),
    Column('odd `name "%s', "text"),
    Column("day", "date"),
    Column("size", "double precision"),
)
USERS = Table("public", "users", COLUMNS, ("id",), ("id",)).ruled(TableRules(soft_delete="gone"))
ODD = COLUMNS[1].name
MARK = "2026-11-20T04:05:06Z"
Read = Callable[[], list[tuple[str | None, ...]]]


def row(number: int, text: str, gone: str | None = None) -> dict[str, Any]:
    return {"id": number, ODD: text, "day": "infinity", "size": float("inf"), "gone": gone}


@pytest.fixture(params=["sqlite", "duckdb", "mariadb"])
async def place(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[str, ReadableTarget, Read]]:
    kind, path = request.param, tmp_path / "copy.db"
    query = "SELECT id, {0}, day, size, gone IS NULL FROM users ORDER BY id"

    def in_file() -> list[tuple[str | None, ...]]:
        connection: Any = (sqlite3 if kind == "sqlite" else duckdb).connect(path)
        with contextlib.closing(connection):
            if kind == "duckdb":
                connection.execute("SET search_path = 'public'")
            quoted = '"{}"'.format(ODD.replace('"', '""'))
            found = connection.execute(query.format(quoted)).fetchall()
            return [tuple(map(str, one)) for one in found]

    def in_mariadb() -> list[tuple[str | None, ...]]:
        server: MariadbServer = request.getfixturevalue("mariadb")
        quoted = "`{}`".format(ODD.replace("`", "``"))
        found = server.asked(query.format(quoted), to.rpartition("/")[2])
        return [tuple(line.split("\t")) for line in found.splitlines()]

    if kind == "mariadb":
        to, read = request.getfixturevalue("mariadb_database"), in_mariadb
    else:
        to, read = f"{kind}:///{path}", in_file
    # Infinity is in no date or number of the servers.
    target = target_of(to, {} if kind == "sqlite" else {"text": ["users.day", "users.size"]})
    await target.load()
    await target.write([CreateTable(USERS)])
    rows = [row(1, "one"), row(2, "two"), row(3, "marked", MARK), row(4, "four")]
    await target.write([InsertRows(USERS, rows)])
    await target.commit({"lane s": "here"})
    yield to, target, read
    await target.close()


def shown(found: list[tuple[str | None, ...]]) -> list[tuple[int, str | None, bool]]:
    """The parts that each client shows alike."""
    return [(int(str(one[0])), one[1], one[4] in {"1", "True"}) for one in found]


async def test_an_editor_changes_rows_by_handle_and_replaces_marked_ones(
    place: tuple[str, ReadableTarget, Read],
) -> None:
    to, target, read = place
    stored = {one[2:4] for one in read()}
    # Without the sink's options, as the command has none.
    editing = target_of(to)
    with edited(editing, USERS) as editor:
        assert editor.marks["lane s"] == "here"
        found = {values[0]: (handle, values) for rows in editor.rows() for handle, values in rows}
        assert sorted(found) == [1, 2, 4]
        assert found[1][1][1] == "one"
        assert editor.delete(found[1][0]) == 1
        values = row(2, "it's `2`\n\\")
        del values["gone"]
        assert editor.update(found[2][0], values) == 1
        editor.insert({**values, "id": 3, ODD: "three"})
        editor.insert({**values, "id": 5, ODD: "five"})
        editor.commit()
    kept = [(number, text) for number, text, is_there in shown(read()) if is_there]
    assert [number for number, _ in kept] == [2, 3, 4, 5]
    assert dict(kept)[3] == "three"
    assert len(read()) == 4, "the marked row is gone"
    # Stored as the mirror stores these values: as text, by choice.
    assert {one[2:4] for one in read()} == stored
    # The mirror is still the writer.
    await target.write([InsertRows(USERS, [row(6, "six")])])
    await target.commit({})
    assert [number for number, _, _ in shown(read())] == [2, 3, 4, 5, 6]


async def test_an_editor_keeps_the_mirror_out_and_leaves_nothing_without_a_commit(
    place: tuple[str, ReadableTarget, Read], monkeypatch: pytest.MonkeyPatch
) -> None:
    to, target, read = place
    await target.close()
    monkeypatch.setattr(sqlite_target, "BUSY_TIMEOUT_S", 0.2)
    before = read()
    late = target_of(to, {} if to.startswith("sqlite") else {"text": ["users.day", "users.size"]})
    if to.startswith("mariadb"):
        await late.load()
        late._session.ask("SET SESSION innodb_lock_wait_timeout = 1")  # type: ignore[attr-defined]
    with contextlib.ExitStack() as stack:
        editor = stack.enter_context(edited(target_of(to), USERS))
        handles = [handle for rows in editor.rows() for handle, _ in rows]
        assert [editor.delete(handle) for handle in handles] == [1, 1, 1]
        six = InsertRows(USERS, [row(6, "six")])
        if to.startswith("duckdb"):
            # Its lock is between processes.
            opening = f"import duckdb; duckdb.connect('{to.removeprefix('duckdb:///')}')"
            done = await asyncio.create_subprocess_exec(
                sys.executable, "-c", opening, stderr=asyncio.subprocess.PIPE
            )
            assert b"Could not set lock" in (await done.communicate())[1]
        else:
            with pytest.raises(TargetError) as refused:
                await (late.write([six]) if to.startswith("mariadb") else late.load())
            # The mirror tries again.
            assert refused.value.retry
    assert read() == before
    await late.load()
    await late.write([six])
    await late.commit({})
    await late.close()
    assert len(read()) == 5
