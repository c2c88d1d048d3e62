"""Maintains a table in SQLite from the archive, exactly once: it stores the position and the rows in
one transaction.

    python archive_exactly_once.py file:///var/lib/headrace/archive orders.db public.orders

Kill it at any point and start it again: it continues after the last change that it committed. Needs
only `headrace[archive]`.
"""

from __future__ import annotations

import sqlite3
import sys

from headrace.archive import RowKind, WalFile, WalReader, WalReaderOptions
from headrace.archive.registry import register
from headrace.archive.store import Store

READER = "sqlite_example"


def prepare(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE IF NOT EXISTS rows (key TEXT PRIMARY KEY, value TEXT)")
    database.execute("CREATE TABLE IF NOT EXISTS place (next_id INT, lsn INT, ordinal INT)")
    if database.execute("SELECT count(*) FROM place").fetchone()[0] == 0:
        database.execute("INSERT INTO place VALUES (1, -1, -1)")
    database.commit()


def apply(database: sqlite3.Connection, file: WalFile) -> None:
    """Apply a file's changes and store the position after them, in one transaction."""
    (lsn, ordinal) = database.execute("SELECT lsn, ordinal FROM place").fetchone()
    with database:
        for entry in file:
            if entry.position <= (lsn, ordinal):
                continue
            if entry.kind is RowKind.PUT:
                if entry.before_json is not None:
                    # The old key, where an update changed it; the whole old row under REPLICA
                    # IDENTITY FULL.
                    old_key = {name: (entry.before or {}).get(name) for name in entry.key or {}}
                    database.execute("DELETE FROM rows WHERE key = ?", (_text(old_key),))
                database.execute(
                    "INSERT OR REPLACE INTO rows VALUES (?, ?)", (entry.key_json, entry.after_json)
                )
            elif entry.kind is RowKind.DELETE:
                database.execute("DELETE FROM rows WHERE key = ?", (entry.key_json,))
            elif entry.kind is RowKind.TRUNCATE:
                database.execute("DELETE FROM rows")
        last = file.info.last
        database.execute(
            "UPDATE place SET next_id = ?, lsn = ?, ordinal = ?", (file.next_id, last.lsn, last.seq)
        )


def _text(key: dict[str, object]) -> str:
    import json  # noqa: PLC0415  # as the archive writes it: without spaces

    return json.dumps(key, separators=(",", ":"), ensure_ascii=False)


def main(url: str, path: str, table: str, *, wait: bool = True) -> None:
    database = sqlite3.connect(path)
    prepare(database)
    (next_id,) = database.execute("SELECT next_id FROM place").fetchone()
    reader, store = WalReader(url, WalReaderOptions(tables=(table,))), Store(url)
    for file in reader.files(from_id=next_id, wait=wait):
        apply(database, file)
        # After the commit: garbage collection may have what was read. This is no part of the
        # exactness.
        register(store, READER, file.next_id)


if __name__ == "__main__":
    main(*sys.argv[1:4], wait="--once" not in sys.argv)
