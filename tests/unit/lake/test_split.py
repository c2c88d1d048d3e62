"""A batch that is divided among tasks does what it says, for any parts."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from headrace.archive.metadata import ColumnInfo
from headrace.lake import data_files
from headrace.lake.apply import apply
from headrace.lake.catalog import TableName
from headrace.lake.draft import ColumnCache, TableDraft
from headrace.lake.snapshots import LiveFile, TableFiles
from headrace.lake.split import Division, KeyPart, parts_by_key, survey
from headrace.lake.tables import LakeTable, new_table
from tests.support.lake_memory import ROOT, MemoryFiles

COLUMNS = [
    ColumnInfo("id", 20, -1, "bigint", is_key=True, number=1),
    ColumnInfo("n", 20, -1, "bigint", is_key=False, number=2),
    ColumnInfo("big", 25, -1, "text", is_key=False, number=3),
]
SCHEMA = pa.schema(
    [
        ("operation", pa.string()),
        ("key", pa.string()),
        ("before", pa.string()),
        ("after", pa.string()),
        ("unchanged", pa.list_(pa.string())),
        ("exact", pa.string()),
    ]
)
FOLDER = f"{ROOT}/public/t"
Row = dict[str, Any]


@dataclass
class History:
    """A table's rows, and the changes that made them so."""

    random: random.Random
    rows: dict[int, Row] = field(default_factory=dict)
    changes: list[Row] = field(default_factory=list)

    def step(self) -> None:
        kind = self.random.choice("iiuuuumdd" if self.rows else "i")
        if kind == "i":
            key = self.random.randrange(60)
            if key not in self.rows:
                self._insert(key)
        else:
            key = self.random.choice(sorted(self.rows))
            if kind == "d":
                del self.rows[key]
                self._log("delete", key)
            elif kind == "u":
                self._update(key, key)
            else:
                free = [other for other in range(60) if other not in self.rows]
                self._update(key, self.random.choice(free))

    def truncate(self) -> None:
        self.rows.clear()
        self._log("truncate", None)

    def _insert(self, key: int) -> None:
        self.rows[key] = {"id": key, "n": self.random.randrange(9), "big": f"big of {key}"}
        self._log("insert", key, after=self.rows[key])

    def _update(self, key: int, new: int) -> None:
        row = {**self.rows.pop(key), "id": new, "n": self.random.randrange(9)}
        self.rows[new] = row
        # PostgreSQL does not send a large value that did not change.
        sent = {name: value for name, value in row.items() if name != "big"}
        before = None if key == new else {"id": key}
        self._log("update", new, before=before, after=sent, unchanged=["big"])

    def _log(self, operation: str, key: int | None, **more: Any) -> None:
        self.changes.append(
            {
                "operation": operation,
                "key": None if key is None else _json({"id": key}),
                "before": _json(more.get("before")),
                "after": _json(more.get("after")),
                "unchanged": more.get("unchanged"),
                "exact": None,
            }
        )

    def taken(self) -> pa.Table:
        """The changes since the last call."""
        batch = pa.Table.from_pylist(self.changes, SCHEMA)
        self.changes.clear()
        return batch


def _json(row: Row | None) -> str | None:
    return None if row is None else json.dumps(row, separators=(",", ":"))


def a_table() -> LakeTable:
    return new_table(TableName("public", "t"), 1, COLUMNS, ("id",), 0)


def rows_of(files: MemoryFiles, base: TableFiles, draft: TableDraft) -> list[tuple[Any, ...]]:
    """The rows that a reader finds in the next snapshot's files, without the rows that are deleted."""
    changes = draft.finish()
    paths = [path for path in base.data if path not in changes.removed]
    deletes = {path: live.file for path, live in base.deletes.items()} | changes.deletes
    found: list[tuple[Any, ...]] = []
    for path in [*paths, *(file.file_path for file in changes.added)]:
        rows = data_files.read_columns(files, path, [1, 3, 5]).to_pylist()
        delete = deletes.get(path)
        gone = set()
        if delete is not None:
            gone = set(data_files.read_positions(files, delete.file_path)[path].tolist())
        found += [tuple(row.values()) for at, row in enumerate(rows) if at not in gone]
    return sorted(found)


def start(history: History, files: MemoryFiles, table: LakeTable) -> TableFiles:
    """The history so far as a table of two files, one of which has deleted rows."""
    draft = TableDraft(files, FOLDER, TableFiles(), ColumnCache(1 << 20), table.schema(0))
    for _ in range(2):
        for _ in range(60):
            history.step()
        apply(draft, table, history.taken())
        draft.write_waiting()
    changes = draft.finish()
    found = TableFiles()
    for number, file in enumerate(changes.added):
        found.data[file.file_path] = LiveFile(file, 1, number, number)
    for path, delete in changes.deletes.items():
        found.deletes[path] = LiveFile(delete, 1, 9, 9)
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("count", [1, 3, 7])
def test_parts_by_key_together_do_what_the_batch_does(seed: int, count: int) -> None:
    history = History(random.Random(seed))
    files = MemoryFiles()
    table = a_table()
    base = start(history, files, table)
    draft = TableDraft(files, FOLDER, base, ColumnCache(1 << 20), table.schema(0))
    for _ in range(3):
        for _ in range(80):
            history.step()
        if history.random.random() < 0.3:
            history.truncate()
            history.step()
        batch = history.taken()
        found = survey(batch, table.unique_key)
        assert found.division is Division.BY_KEY
        state = pickle.loads(pickle.dumps(draft.state()))  # noqa: S301
        outcomes = []
        for part in parts_by_key(found.moves, count):
            continued = TableDraft.continued(files, state, ColumnCache(1 << 20))
            # As a task does that reads one file after another.
            changes = part.of(batch)
            middle = changes.num_rows // 2
            for piece in (changes.slice(0, middle), changes.slice(middle)):
                apply(continued, table, piece)
            outcomes.append(continued.changes())
        draft.absorb(outcomes)
    expected = sorted((row["id"], row["n"], row["big"]) for row in history.rows.values())
    assert rows_of(files, base, draft) == expected


def test_a_key_is_in_the_part_of_the_keys_that_it_had_before() -> None:
    moves = [(f'{{"id":{number}}}', f'{{"id":{number + 1}}}') for number in range(40)]
    parts = parts_by_key(moves, 5)
    keys = pa.array([f'{{"id":{number}}}' for number in range(41)])
    batch = pa.table({"key": keys, "operation": ["update"] * 41})
    assert sorted(part.of(batch).num_rows for part in parts) == [0, 0, 0, 0, 41]


def test_every_row_is_in_one_part_and_a_truncate_in_all() -> None:
    keys = [None, *(f'{{"id":{number}}}' for number in range(200)), None]
    operations = ["truncate", *["update"] * 200, "update"]
    batch = pa.table({"key": keys, "operation": operations})
    parts = [part.of(batch) for part in parts_by_key([], 4)]
    assert all(part.column("operation")[0].as_py() == "truncate" for part in parts)
    found = [key for part in parts for key in part.column("key").to_pylist()[1:]]
    assert sorted(map(str, found)) == sorted(map(str, keys[1:]))
    assert min(part.num_rows for part in parts) > 20
    assert KeyPart().of(batch).equals(batch)


@pytest.mark.parametrize(
    ("operations", "key", "division"),
    [
        (["insert", "insert"], ("id",), Division.BY_FILE),
        (["insert", "insert"], (), Division.BY_FILE),
        (["insert", "delete"], (), Division.NONE),
        (["insert", "delete"], ("id",), Division.BY_KEY),
        (["truncate", "insert"], ("id",), Division.BY_KEY),
    ],
)
def test_insertions_are_divided_by_file_and_changes_by_key(
    operations: list[str], key: tuple[str, ...], division: Division
) -> None:
    batch = pa.table(
        {
            "operation": operations,
            "key": ['{"id":1}'] * 2,
            "before": pa.array([None, None], pa.string()),
        }
    )
    assert survey(batch, key).division is division


def test_a_changed_key_that_shows_the_whole_row_keeps_the_table_together() -> None:
    batch = pa.table(
        {"operation": ["update"], "key": ['{"id":2}'], "before": ['{"id":1,"n":5,"big":"x"}']}
    )
    assert survey(batch, ("id",)).division is Division.NONE
