"""A sink of your own, exactly once: every event is a row in SQLite, in the marks' transaction.

    [[sink]]
    name = "events"
    to = "python:own_sink:SqliteSink"
    options = {file = "events.db"}

The process needs this folder in PYTHONPATH.
"""

import sqlite3
from collections.abc import Mapping, Sequence

from headrace.consumer import Position, Watermark
from headrace.sinks import Promise, RoutedTransaction, SinkOptions


class SqliteSink:
    promise = Promise.EXACTLY_ONCE

    def __init__(self, options: SinkOptions) -> None:
        self.db = sqlite3.connect(options.options["file"], isolation_level=None)

    async def open(self) -> dict[str, Watermark]:
        # A transaction is open all the time: a second process waits for the first one's end.
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("CREATE TABLE IF NOT EXISTS events (id TEXT PRIMARY KEY, event TEXT)")
        self.db.execute("CREATE TABLE IF NOT EXISTS marks (name TEXT, lsn INT, seq INT, at INT)")
        self.db.execute("BEGIN IMMEDIATE")
        marks = self.db.execute("SELECT name, lsn, seq, at FROM marks").fetchall()
        return {name: Watermark(Position(lsn, seq), at) for name, lsn, seq, at in marks}

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        rows = [(one.id, one.value.decode()) for each in transactions for one in each.records]
        self.db.executemany("INSERT INTO events VALUES (?, ?)", rows)

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        rows = [(name, *mark.position, mark.stream_seq) for name, mark in marks.items()]
        self.db.execute("DELETE FROM marks")
        self.db.executemany("INSERT INTO marks VALUES (?, ?, ?, ?)", rows)
        self.db.execute("COMMIT")
        self.db.execute("BEGIN IMMEDIATE")

    async def close(self) -> None:
        self.db.close()
