"""A lake of ten tables whose amounts always have the same sum, and a model of their rows.

Each step changes several tables and ends with a cut: transfers, rows that come and go in pairs,
TRUNCATE, columns that come or are renamed, tables that are renamed, dropped, made or copied again,
compaction.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.archive.metadata import ColumnInfo, TableInfo
from headrace.lake.catalog import Cut, TableName
from headrace.lake.compaction import compact
from headrace.lake.files import LakeFiles
from headrace.lake.sqlite_catalog import SqliteCatalog
from headrace.lake.tables import copied, new_table
from headrace.lake.writer import LakeWriter, Source
from tests.support.local_lake import LIMITS, SLOT, archived, segment, written

TABLES = 10
ROWS = 40
AMOUNT = 100
TOTAL = TABLES * ROWS * AMOUNT
KEY = ColumnInfo("id", 20, -1, "bigint", True, number=1)
AMOUNT_COLUMN = ColumnInfo("amount", 20, -1, "bigint", False, number=2)

Rows = dict[int, dict[str, Any]]


@dataclass
class Account:
    """A table, and its rows by their keys and the numbers of their columns."""

    name: TableName
    relation_id: int
    columns: tuple[ColumnInfo, ...] = (KEY, AMOUNT_COLUMN)
    version: int = 1
    rows: dict[int, dict[int, Any]] = field(default_factory=dict)

    def shown(self) -> list[tuple[Any, ...]]:
        """The rows as a reader sees them."""
        numbers = [column.number for column in self.columns]
        every = [tuple(row.get(number) for number in numbers) for row in self.rows.values()]
        return sorted(every, key=str)


class AccountsLake:
    """The writer of the lake; `seen` has what each cut shows, by the table's name."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.files = LakeFiles(f"file://{folder}")
        self._catalog = SqliteCatalog(folder / "catalog.db")
        source = Source(SLOT, "1", 1, "archive")
        self.writer = LakeWriter(self.files, self._catalog, source, 64 << 20, 1000)
        self.writer.open()
        self.random = random.Random(seed)
        self._lsn = 100
        self._file = 0
        self._next = 1000
        self.seen: dict[int, dict[TableName, list[tuple[Any, ...]]]] = {}
        self.accounts = [self._new(number) for number in range(TABLES)]
        for account in self.accounts:
            account.rows = {row: {1: row, 2: AMOUNT} for row in range(ROWS)}
            self._copy(account)
        self._cut()

    def step(self) -> str:
        """Change something, and make a cut; what it did."""
        done = []
        for _ in range(self.random.randrange(1, 4)):
            action = self.random.choice(
                [
                    *[self._transfer] * 6,
                    self._pair,
                    self._truncate,
                    self._add_column,
                    self._rename_column,
                    self._rename,
                    self._replace,
                    self._copy_again,
                    self._compact,
                ]
            )
            action()
            done.append(action.__name__)
        self._cut()
        return ", ".join(done)

    def _new(self, number: int) -> Account:
        self._next += 1
        return Account(TableName("public", f"account_{number}_{self._next}"), self._next)

    def _two(self) -> tuple[Account, Account]:
        first, second = self.random.sample(self.accounts, 2)
        return first, second

    def _transfer(self) -> None:
        for _ in range(5):
            giver, taker = self._two()
            amount = self.random.randrange(50)
            self._add(giver, -amount)
            self._add(taker, amount)

    def _add(self, account: Account, amount: int) -> None:
        """To one row, which is new if there is none."""
        if not account.rows:
            self._next += 1
            account.rows[self._next] = {1: self._next, 2: amount}
            self._change(account, "insert", [self._next])
            return
        row = self.random.choice(sorted(account.rows))
        account.rows[row] = {
            **account.rows[row],
            2: account.rows[row][2] + amount,
            **{column.number: self.random.randrange(100) for column in account.columns[2:]},
        }
        self._change(account, "update", [row])

    def _pair(self) -> None:
        one, other = self._two()
        amount = self.random.randrange(1000)
        for account, sign in ((one, 1), (other, -1)):
            self._next += 1
            account.rows[self._next] = {1: self._next, 2: sign * amount}
            self._change(account, "insert", [self._next])
        for account in (one, other):
            row = self.random.choice(sorted(account.rows))
            left = account.rows.pop(row)[2]
            self._change(account, "delete", [row])
            self._add(account, left)

    def _truncate(self) -> None:
        emptied, other = self._two()
        moved = sum(row[2] for row in emptied.rows.values())
        emptied.rows.clear()
        self._change(emptied, "truncate", [0])
        self._add(other, moved)

    def _add_column(self) -> None:
        account = self.random.choice(self.accounts)
        number = max(column.number for column in account.columns) + 1
        column = ColumnInfo(f"c{number}", 23, -1, "integer", False, filled=False, number=number)
        account.columns = (*account.columns, column)
        account.version += 1
        self._add(account, 0)

    def _rename_column(self) -> None:
        account = self.random.choice(self.accounts)
        self._next += 1
        place = self.random.randrange(1, len(account.columns))
        renamed = account.columns[place]
        if place == 1:
            return
        name = f"d{self._next}"
        column = ColumnInfo(name, renamed.type_oid, -1, "integer", False, False, renamed.number)
        account.columns = (*account.columns[:place], column, *account.columns[place + 1 :])
        account.version += 1
        self._add(account, 0)

    def _rename(self) -> None:
        account = self.random.choice(self.accounts)
        self._next += 1
        before = account.name
        account.name = TableName("public", f"account_{self._next}")
        self.writer.rename(before, account.name)
        self._add(account, 0)

    def _replace(self) -> None:
        """A table goes, and another one has its amounts."""
        place = self.random.randrange(TABLES)
        gone = self.accounts[place]
        self.writer.drop(gone.name)
        new = self._new(place)
        new.rows = {1: {1: 1, 2: sum(row[2] for row in gone.rows.values())}}
        self.accounts[place] = new
        self._copy(new)

    def _copy_again(self) -> None:
        self._copy(self.random.choice(self.accounts))

    def _compact(self) -> None:
        if not self.writer.changed:
            compact(self.files, self.writer, LIMITS)

    def _copy(self, account: Account) -> None:
        before = self.writer.tables.get(account.name)
        if before is None:
            table = new_table(
                account.name, account.relation_id, account.columns, ("id",), self._lsn
            )
        else:
            table = copied(before, account.relation_id, account.columns, ("id",), self._lsn)
        folder, schema = self.writer.prepare_copy(table)
        rows = pa.table(
            {
                column.name: pa.array(
                    [row.get(column.number) for row in account.rows.values()],
                    pa.int64() if column.type_oid == 20 else pa.int32(),
                )
                for column in account.columns
            }
        )
        self.writer.adopt(table, folder, written(self.files, folder, schema, rows))

    def _change(self, account: Account, operation: str, keys: list[int]) -> None:
        self._lsn += 100
        self._file += 1
        after: list[str | None] = [None] * len(keys)
        if operation in {"insert", "update"}:
            after = [
                json.dumps(
                    {
                        column.name: account.rows[key].get(column.number)
                        for column in account.columns
                    }
                )
                for key in keys
            ]
        table = TableInfo(
            account.name.namespace,
            account.name.name,
            account.relation_id,
            account.version,
            ("id",),
            account.columns,
        )
        changes = archived(table, self._lsn, operation, keys, after)
        self.writer.take(segment(self._file, self._lsn, table), changes)

    def _cut(self) -> Cut:
        assert not self.writer.to_copy, self.writer.to_copy
        self._lsn += 100
        number = 1 if self.writer.last_cut is None else self.writer.last_cut.number + 1
        # Before readers can see it.
        self.seen[number] = {account.name: account.shown() for account in self.accounts}
        return self.writer.cut(self._lsn, 0, self._file, None)
