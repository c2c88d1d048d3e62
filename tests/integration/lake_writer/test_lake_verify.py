"""`headrace lake verify` finds a damaged row in each way, and nothing in a whole lake, while both
move.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.cli.lake import verify
from headrace.cli.lake.selection import opened
from headrace.testing.suite import Suite
from headrace.testing.value_cases import ARRAYS, CASES
from tests.oracle.lake import ForeignLake
from tests.support.archiving import Archiving
from tests.support.lake import SERVICES, lake_environment, reached
from tests.support.lake_load import TABLES, create_accounts, running, transfers

DAMAGED = """
CREATE TABLE damaged (id int PRIMARY KEY, note text, day date);
INSERT INTO damaged SELECT g, 'note ' || g, '2025-01-01'::date + g FROM generate_series(1, 9) g;
UPDATE damaged SET day = 'infinity' WHERE id = 5
"""
Damage = Callable[[pa.Table], pa.Table]


def changed(table: pa.Table, column: str, row: int, value: Any) -> pa.Table:
    values = table.column(column).to_pylist()
    values[row] = value
    place = table.column_names.index(column)
    field = table.schema.field(column)
    return table.set_column(place, field, pa.array(values, field.type))


def row_of(table: pa.Table, key: int) -> int:
    return int(table.column("id").to_pylist().index(key))


def without_row(table: pa.Table) -> pa.Table:
    keep = [key != 3 for key in table.column("id").to_pylist()]
    return table.filter(pa.array(keep))


def with_another_row(table: pa.Table) -> pa.Table:
    return changed(pa.concat_tables([table, table.slice(0, 1)]), "id", table.num_rows, 77)


DAMAGES: dict[str, tuple[Damage, list[tuple[str, str, list[str]]]]] = {
    "missing": (without_row, [("missing", "3", [])]),
    "extra": (with_another_row, [("extra", "77", [])]),
    "value": (
        lambda table: changed(table, "note", row_of(table, 4), "other"),
        [("changed", "4", ["note"])],
    ),
    "null": (
        lambda table: changed(table, "note", row_of(table, 4), None),
        [("changed", "4", ["note"])],
    ),
    "exact": (
        lambda table: changed(table, "_headrace_exact", row_of(table, 5), [("day", "-infinity")]),
        [("changed", "5", ["day"])],
    ),
    "no exact": (
        lambda table: changed(table, "_headrace_exact", row_of(table, 5), None),
        [("changed", "5", ["day"])],
    ),
}


async def verified(
    capsys: pytest.CaptureFixture[str], *tables: str
) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and the documents."""
    capsys.readouterr()
    with opened(None, None) as lake:
        code = await verify.verify(lake, tables, 60.0, as_json=True)
    printed = capsys.readouterr().out
    return code, [json.loads(line) for line in printed.splitlines()]


async def test_verify_finds_a_damaged_row_in_each_way(
    archiving: Archiving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database = archiving.database
    await database.execute(DAMAGED)
    environment = lake_environment(archiving, tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    lake = ForeignLake(tmp_path / "lake")
    async with Suite(environment, tmp_path, SERVICES) as suite:
        await reached(lake, database, suite)
        code, (found,) = await verified(capsys, "damaged")
        assert (code, found["equal"], found["rows"], found["rows_moving"]) == (0, True, 9, 0)
        (path,) = (tmp_path / "lake" / "public").glob("damaged-*/data/*.parquet")
        whole = pq.read_table(path)
        original = path.read_bytes()
        for name, (damage, expected) in DAMAGES.items():
            pq.write_table(damage(whole), path)
            code, (found,) = await verified(capsys, "damaged")
            rows = [(row["what"], *row["key"], list(row["columns"])) for row in found["found"]]
            assert (code, rows) == (3, expected), name
        path.write_bytes(original)
        code, (found,) = await verified(capsys, "damaged")
        assert (code, found["equal"]) == (0, True)


async def test_a_whole_lake_is_equal_to_its_source_while_both_move(
    archiving: Archiving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database = archiving.database
    await create_accounts(database)
    environment = lake_environment(archiving, tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    lake = ForeignLake(tmp_path / "lake")
    async with Suite(environment, tmp_path, SERVICES) as suite:
        await reached(lake, database, suite)
        async with running(transfers(database, 3)):
            code, found = await verified(capsys)
    assert code == 0, found
    assert len(found) == TABLES
    assert any(each["rows_moving"] for each in found)


async def test_values_of_every_type_are_equal(
    archiving: Archiving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database = archiving.database
    cases = (*CASES, *ARRAYS)
    for case in cases:
        if case.setup:
            await database.execute(case.setup)
    columns = ", ".join(f'"{case.name}" {case.type}' for case in cases)
    await database.execute(f"CREATE TABLE every (id int PRIMARY KEY, {columns})")

    async def insert(first: int) -> None:
        for row in range(max(len(case.values) for case in cases)):
            values = ", ".join(case.values[min(row, len(case.values) - 1)][0] for case in cases)
            await database.execute(f"INSERT INTO every VALUES ({first + row}, {values})")

    # By the copy, and by the archive.
    await insert(0)
    environment = lake_environment(archiving, tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    lake = ForeignLake(tmp_path / "lake")
    async with Suite(environment, tmp_path, SERVICES) as suite:
        await reached(lake, database, suite)
        await insert(1000)
        await reached(lake, database, suite)
        code, (found,) = await verified(capsys, "every")
    assert found["found"] == []
    assert code == 0, found
