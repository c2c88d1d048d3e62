"""The error of a mirror in DuckDB: what DuckDB said, without the lines for its developers."""

from __future__ import annotations

import duckdb
import pytest

from headrace.mirror.duckdb import explained
from headrace.mirror.target import TargetAwayError, TargetError


@pytest.mark.parametrize(
    ("error", "is_away"),
    [(duckdb.IOException, True), (duckdb.OutOfMemoryException, True), (duckdb.Error, False)],
)
def test_an_error_has_duckdbs_first_line_and_passes_if_it_may_be_over_later(
    error: type[duckdb.Error], *, is_away: bool
) -> None:
    with pytest.raises(TargetError, match=r"m\.db: it is full") as found, explained("m.db"):
        raise error("it is full\nat line 7")
    assert isinstance(found.value, TargetAwayError) == is_away
    assert "line 7" not in str(found.value)
