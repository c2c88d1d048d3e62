"""A copy that fails for a reason that may pass is tried again before the table leaves the lake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest

from headrace.errors import HeadraceError
from headrace.lake.catalog import TableName
from headrace.lake_writer import table_copy
from headrace.postgres.connection import PostgresRefusedError, PostgresUnreachableError
from headrace.spark.driver_process import SparkUnusableError
from tests.support.virtual_time import on_virtual_time

LOCKED = PostgresRefusedError("canceling statement due to lock timeout")


async def copied(outcomes: Sequence[object]) -> tuple[Any, int]:
    """The copy's result or error, and the number of attempts."""
    once = mock.AsyncMock(side_effect=outcomes)
    try:
        result: object = await table_copy.attempted(TableName("public", "orders"), once)
    except HeadraceError as error:
        result = error
    return result, once.await_count


@pytest.mark.parametrize(
    ("outcomes", "attempts"),
    [
        (["rows"], 1),
        ([LOCKED, "rows"], 2),
        ([LOCKED, LOCKED, "rows"], 3),
        ([LOCKED, LOCKED, LOCKED, "never"], 3),
        ([SparkUnusableError("no Java"), "never"], 1),
        # The whole attempt begins again then, with the connection.
        ([PostgresUnreachableError("it restarts"), "never"], 1),
    ],
)
@on_virtual_time
async def test_a_copy_is_tried_three_times(outcomes: list[object], attempts: int) -> None:
    assert await copied(outcomes) == (outcomes[attempts - 1], attempts)
