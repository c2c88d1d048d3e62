"""Counts in words."""

from __future__ import annotations

import pytest

from headrace.terminal.text import counted


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 tables"), (1, "1 table"), (2, "2 tables"), (4321, "4,321 tables")]
)
def test_one_is_singular_and_everything_else_is_plural(count: int, shown: str) -> None:
    assert counted(count, "table") == shown
