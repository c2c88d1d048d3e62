"""Shows the readiness of a running mirror, with the reason, and its figures.

Runs next to the mirror in its process, and never touches the target.
"""

from __future__ import annotations

import asyncio

from headrace.contract.subjects_and_ids import split_table_token
from headrace.mirror.mirror import Mirror
from headrace.process.health import Health
from headrace.timing.waits import wait_for

JUDGE_S = 1.0
LOOK_S = 5.0


async def judge(health: Health, stopping: asyncio.Event, mirror: Mirror) -> None:
    """Keep `health` ready once every table is loaded, and while nothing blocks the mirror."""
    while not stopping.is_set():
        for part in ("target", "stream"):
            if mirror.trouble and mirror.trouble_with == part:
                health.block(part, mirror.trouble)
            else:
                health.unblock(part)
        if mirror.awaited:
            health.block("moment", mirror.awaited)
        else:
            health.unblock("moment")
        health.warnings = _warnings(mirror)
        if mirror.is_whole:
            health.started()
        await wait_for(stopping, JUDGE_S)


def _warnings(mirror: Mirror) -> dict[str, str]:
    """Only names: the text of a refusal may contain a row's values."""
    if not mirror.parked:
        return {}
    tables = ", ".join(".".join(split_table_token(token)) for token in sorted(mirror.parked))
    return {"parked": f"the target refuses {tables}; the log contains the reason (table_parked)"}


async def measure(stopping: asyncio.Event, mirror: Mirror) -> None:
    """Refresh the mirror's gauges."""
    while not stopping.is_set():
        await mirror.look()
        await wait_for(stopping, LOOK_S)
