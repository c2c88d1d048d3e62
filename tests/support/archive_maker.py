"""Creates archives without a database: files of rows that follow only from their numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.archive import file_format
from headrace.archive.columns import SCHEMA
from headrace.archive.layout import file_name
from headrace.archive.metadata import ColumnInfo, TableInfo, WalFileInfo
from headrace.archive.store import Store
from headrace.lsn import ORIGIN, Gap, Position

DAY_US = 86_400_000_000
TABLES = ("orders", "items")


def rows(first: int, count: int) -> pa.Table:
    """Rows `first` to before `first + count`: each transaction has ten, of one table; a day passes
    with each.
    """
    numbers = np.arange(first, first + count)
    transactions = numbers // 10
    columns = {
        "commit_lsn": (transactions + 1) * 100,
        "ordinal": numbers % 10,
        "lsn": (transactions + 1) * 100 - 50 + numbers % 10,
        "xid": transactions,
        "commit_time": pa.array(transactions * DAY_US).cast(pa.timestamp("us", tz="UTC")),
        "schema": ["public"] * count,
        "table": [TABLES[number % 2] for number in transactions.tolist()],
        "operation": ["insert"] * count,
        "key": [f'{{"id":{number}}}' for number in numbers.tolist()],
        "before": pa.nulls(count, pa.string()),
        "after": [f'{{"id":{number},"note":"row {number}"}}' for number in numbers.tolist()],
        "unchanged": pa.nulls(count, pa.list_(pa.string())),
        "schema_version": pa.array([1] * count, pa.int32()),
        "exact": pa.nulls(count, pa.string()),
    }
    return pa.table(columns).select(SCHEMA.names).cast(SCHEMA)


def table_info(name: str) -> TableInfo:
    columns = (ColumnInfo("id", 20, -1, "bigint", True), ColumnInfo("note", 25, -1, "text", False))
    return TableInfo("public", name, 1000 + TABLES.index(name), 1, ("id",), columns)


class Maker:
    """Writes one file after another."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = Store(url)
        self.written = 0
        self.info: WalFileInfo | None = None

    @classmethod
    def with_files(cls, folder: Path, count: int) -> Maker:
        """An archive of `count` files in a folder, each of twenty rows in two transactions."""
        maker = cls(f"file://{folder}/archive")
        for _ in range(count):
            maker.write()
        return maker

    def write(self, count: int = 20, gap: Gap | None = None) -> WalFileInfo:
        """The next `count` rows as the next file, which may end inside a transaction."""
        table = rows(self.written, count)
        end = self.written + count
        first, last = self.written // 10, (end - 1) // 10
        before = self.info
        described = {TABLES[number % 2] for number in range(first, last + 1)}
        info = WalFileInfo(
            id=before.next_id if before else 1,
            archive="made",
            epoch=1,
            writer="maker",
            source="headrace",
            database="db",
            system_id="1",
            timeline=1,
            from_lsn=(first + 1) * 100 - 60,
            end_lsn=(last + 1) * 100 + (1 if end % 10 == 0 else -40),
            rows=count,
            first=Position((first + 1) * 100, self.written % 10),
            last=Position((last + 1) * 100, (end - 1) % 10),
            after=before.last if before else ORIGIN,
            time_us=last * DAY_US,
            gap=gap,
            tables=tuple(table_info(name) for name in sorted(described)),
            previous=before.checksum if before else "",
            whole=end % 10 == 0,
        )
        data, self.info = file_format.encode(table, info)
        self.store.put_new(file_name(info.id), data)
        self.written += count
        return self.info
