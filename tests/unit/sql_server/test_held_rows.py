"""Rows of cursors WITH HOLD: each is read once, in order, and then no longer in memory."""

from __future__ import annotations

import pytest

from headrace.sql import wire
from headrace.sql_server.held_rows import HeldRows
from headrace.sql_server.problems import StatementRefusedError

ROWS = [wire.frame(b"D", bytes([number]) * 1000) for number in range(200)]


async def read(held: HeldRows, rows_max: int) -> list[tuple[int, bytes]]:
    return [part async for part in held.parts((0,), rows_max)]


async def test_fetches_of_any_size_give_each_row_once_and_in_order() -> None:
    held = HeldRows((0,))
    held.add(b"".join(ROWS))
    assert await read(held, 1) == [(1, ROWS[0])]
    assert await read(held, 3) == [(3, b"".join(ROWS[1:4]))]
    # The rest, in parts that are sent one after the other.
    rest = await read(held, 0)
    assert len(rest) > 1
    assert sum(count for count, _ in rest) == 196
    assert b"".join(data for _, data in rest) == b"".join(ROWS[4:])
    assert await read(held, 0) == []


async def test_rows_that_were_read_take_no_memory() -> None:
    held = HeldRows((0,))
    held.add(b"".join(ROWS))
    before = held.size
    assert before > sum(map(len, ROWS))
    await read(held, 100)
    assert held.size == before // 2
    await read(held, 0)
    assert held.size == 0


async def test_another_form_is_refused() -> None:
    held = HeldRows((0,))
    held.add(ROWS[0])
    with pytest.raises(StatementRefusedError, match="two forms"):
        _ = [part async for part in held.parts((1,), 0)]
