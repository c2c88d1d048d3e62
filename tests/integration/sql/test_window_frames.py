"""Every kind of window frame gives PostgreSQL's answer in DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from headrace.testing.servers import SessionServers
from tests.support import sql_tables
from tests.support.sql_pair import SqlPair, Tally, sql_pair

OFFSETS = (0, 1, 3)
PRECEDING = tuple(f"{offset} PRECEDING" for offset in OFFSETS)
FOLLOWING = tuple(f"{offset} FOLLOWING" for offset in OFFSETS)
BOUNDS = (PRECEDING, ("CURRENT ROW",), FOLLOWING)
EXCLUDED = ("", "EXCLUDE CURRENT ROW", "EXCLUDE GROUP", "EXCLUDE TIES")
AGGREGATES = (
    "count(*) OVER w, count(i4) OVER w, sum(i4) OVER w, min(tx) OVER w, max(n) OVER w, "
    "avg(i4) OVER w, count(*) FILTER (WHERE i4 > 0) OVER w"
)
# The order of rows decides.
OF_FRAME = ", first_value(i4) OVER w, last_value(tx) OVER w, nth_value(n, 2) OVER w"
INVERTED = "a window frame that ends before its start"


@pytest.fixture(scope="module")
def pair(session_servers: SessionServers) -> Iterator[SqlPair]:
    with sql_pair(session_servers.shared_postgres(18), *sql_tables.statements()) as made:
        yield made


def frames() -> Iterator[str]:
    """All that PostgreSQL's grammar has: no start is later in `BOUNDS` than its end."""
    for first in range(len(BOUNDS)):
        ends = (*(end for each in BOUNDS[first:] for end in each), "UNBOUNDED FOLLOWING")
        for start, end in product(BOUNDS[first], ends):
            yield f"BETWEEN {start} AND {end}"
    for each in (*(end for bound in BOUNDS for end in bound), "UNBOUNDED FOLLOWING"):
        yield f"BETWEEN UNBOUNDED PRECEDING AND {each}"


@pytest.mark.parametrize(
    ("mode", "order", "more"), [("ROWS", "id", OF_FRAME), ("GROUPS", "i2 DESC", "")]
)
def test_frames_have_postgresqls_rows(pair: SqlPair, mode: str, order: str, more: str) -> None:
    tally = Tally()
    for frame, excluded in product(frames(), EXCLUDED):
        window = f"PARTITION BY b ORDER BY {order} {mode} {frame} {excluded}"
        statement = f"SELECT id, {AGGREGATES}{more} FROM calm WINDOW w AS ({window}) ORDER BY id"
        tally.compare(pair, statement, ordered=True, strict=True)
    assert not tally.different, "\n\n".join(tally.different[:5])
    assert set(tally.refused) == {INVERTED}
    # 3 of 9 pairs of offsets, on either side.
    assert tally.refused.total() == 2 * 3 * len(EXCLUDED)
    assert tally.equal > 150
