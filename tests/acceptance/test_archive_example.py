"""The recipe of docs/archive.md: killed anywhere, its table is the archive's in the end."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import sys
from pathlib import Path

from headrace.archive import WalReader
from headrace.archive.registry import registered
from tests.support.archive_maker import Maker

EXAMPLE = Path(__file__).parents[2] / "examples/python/archive_exactly_once.py"


async def test_the_recipe_is_exactly_once_through_hard_kills(tmp_path: Path) -> None:
    made = Maker(f"file://{tmp_path}/archive")
    for _ in range(30):
        made.write(200)
    path, chance = tmp_path / "copy.db", random.Random(5)
    command = [sys.executable, str(EXAMPLE), made.url, str(path), "public.orders", "--once"]
    for _ in range(5):
        process = await asyncio.create_subprocess_exec(*command)
        await asyncio.sleep(0.4 + chance.random())
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == 0
    with sqlite3.connect(path, timeout=30) as database:
        found = dict(database.execute("SELECT key, value FROM rows"))
        (next_id,) = database.execute("SELECT next_id FROM place").fetchone()
    database.close()
    entries = list(WalReader(made.url).follow(wait=False))
    assert found == {
        entry.key_json: entry.after_json for entry in entries if entry.table == "orders"
    }
    assert next_id == 31
    assert [(reader.name, reader.next_id) for reader in registered(made.store)] == [
        ("sqlite_example", 31)
    ]
