"""How far readers of a copy see everything: an LSN for each source, stored with the rows.

Everything that committed at the source before this LSN is visible in each table that readers see,
except for tables that are parked.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headrace.consumer.watermark import Watermarks
from headrace.errors import HeadraceError
from headrace.lsn import ORIGIN, format_lsn
from headrace.mirror.table import Phase, TableState

if TYPE_CHECKING:
    from headrace.mirror.target import ReadableTarget

# The mark's key in the target.
VISIBLE = "visible"
LOOK_S = 0.05
_COPIED = frozenset({Phase.WANTED, Phase.LOADING, Phase.LOADED})


class NotVisibleError(HeadraceError):
    """Readers of the copy do not see everything before an LSN in time."""

    remedy = "Check that the suite and the copy's process run (`headrace status`), or wait longer."


def visible_of(marks: Mapping[str, str]) -> dict[str, int]:
    """By source: readers see everything that committed before this LSN."""
    found: dict[str, int] = json.loads(marks.get(VISIBLE, "{}"))
    return found


def visible_in(
    lanes: Watermarks,
    tables: Iterable[TableState],
    complete: Mapping[str, int],
    before: Mapping[str, int],
    *,
    fresh: bool,
) -> dict[str, int]:
    """By source, for a state that is being committed; `complete` is known from the publisher's
    progress, and `before` is what the last commit stored.
    """
    states = list(tables)
    now = {
        source: mark.position.lsn + 1
        for source, mark in lanes.items()
        # In arrays of events, each table has a separate lane.
        if source and "/" not in source and mark.position > ORIGIN
    }
    for state in states:
        if state.phase is Phase.FOLLOWING and state.source:
            # A table is shown once everything before its snapshot is applied.
            now[state.source] = max(now.get(state.source, 0), state.since)
    now = {source: max(lsn, complete.get(source, 0)) for source, lsn in now.items()}
    if fresh and any(state.live is not None and state.phase in _COPIED for state in states):
        # Readers see that table at an older moment than the others.
        now = dict(before)
    # Until its tables are copied again, LSNs of the source have another meaning than those stored.
    diverged = {state.source for state in states if state.diverged_seq}
    return {source: lsn for source, lsn in now.items() if source not in diverged}


async def wait_for(
    target: ReadableTarget, lsn: int, timeout_s: float = 10.0, source: str = ""
) -> int:
    """Wait until readers of the target see everything that committed before this LSN, and return
    how far they see. Raises `NotVisibleError` if they don't in time.

    `source` is the slot's name, which only a target with several sources needs.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        async with target.reading() as reading:
            seen = visible_of(reading.marks)
        if not source and len(seen) > 1:
            raise NotVisibleError(
                f"the copy has several sources: {', '.join(sorted(seen))}",
                remedy="Name one of them, because each has its own LSNs.",
            )
        reached = seen.get(source, 0) if source else max(seen.values(), default=0)
        if reached >= lsn:
            return reached
        if time.monotonic() >= deadline:
            raise NotVisibleError(
                f"after {timeout_s:g} s the copy's readers see everything before "
                f"{format_lsn(reached)}, not {format_lsn(lsn)}"
            )
        await asyncio.sleep(LOOK_S)
