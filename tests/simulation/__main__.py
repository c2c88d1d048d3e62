"""Runs histories by the million, on all cores: `python -m tests.simulation --histories 1000000`.

`--seed N --show` prints one history with its log; `--shrink` prints the smallest part of it that
still fails.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from tests.simulation.clockwork import PROCESS
from tests.simulation.plan import CLASSES, Plan, drawn, shrunk
from tests.simulation.world import World

_SHARE = 50
_REPORT_S = 30.0


def violation(plan: Plan) -> str | None:
    """The violation in this history, if any."""
    try:
        World(plan).live()
    except AssertionError as broken:
        return f"{type(broken).__name__}: {broken}"
    return None


def smallest(plan: Plan) -> Plan:
    """The smallest plan that still fails in the same way."""
    found = (violation(plan) or "")[:25]
    return shrunk(plan, lambda smaller: (violation(smaller) or "-")[:25] == found)


def _share(job: tuple[range, tuple[str, ...]]) -> tuple[int, list[int]]:
    seeds, kinds = job
    return len(seeds), [seed for seed in seeds if violation(drawn(seed, kinds)) is not None]


def _jobs(options: argparse.Namespace) -> Iterator[tuple[range, tuple[str, ...]]]:
    last = options.seed + options.histories
    for first in range(options.seed, last, _SHARE):
        yield range(first, min(first + _SHARE, last)), options.kinds


def run_all(options: argparse.Namespace) -> int:
    """Live through all of them; how many failed."""
    began = said_at = time.monotonic()
    done, failed = 0, 0
    with multiprocessing.Pool(options.workers) as pool:
        for count, seeds in pool.imap_unordered(_share, _jobs(options)):
            done += count
            for seed in seeds:
                failed += 1
                tell(drawn(seed, options.kinds), shrink=failed <= options.shrunk_max)
            if time.monotonic() - said_at > _REPORT_S:
                said_at = time.monotonic()
                print(progress(done, options.histories, failed, said_at - began), flush=True)
            if failed >= options.failures_max:
                break
    print(f"{done} histories from seed {options.seed}, {failed} failed")
    return failed


def progress(done: int, wanted: int, failed: int, took_s: float) -> str:
    """How far it is, and how long the rest takes at this speed."""
    left = timedelta(seconds=round((wanted - done) * took_s / done)) if done else "unknown"
    rate = done / took_s
    return f"{done} of {wanted} histories, {failed} failed, {rate:.0f} a second, {left} left"


def tell(plan: Plan, *, shrink: bool) -> None:
    print(f"FAILED: seed {plan.seed}: {violation(plan)}")
    if shrink:
        least = smallest(plan)
        print(f"shrunk to: {violation(least)}\n{least}")
    sys.stdout.flush()


class _Log(logging.Handler):
    """The log of the services, with the world's time."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = PROCESS.get()
        fields: dict[str, Any] = getattr(record, "fields", {})
        said = " ".join(f"{name}={value}" for name, value in fields.items())
        who = process.name if process is not None else ""
        print(
            f"{self._world.loop.now:9.4f} {who:12} {record.levelname} {record.msg % record.args} {said}"
        )


def show(plan: Plan, level: str) -> None:
    """One history, with its log."""
    world = World(plan)
    world.quiet = logging.NOTSET
    logger = logging.getLogger("headrace")
    logger.setLevel(level)
    logger.addHandler(_Log(world))
    logger.propagate = False
    print(plan)
    try:
        world.live()
    except AssertionError as broken:
        print(f"{type(broken).__name__}: {broken}")
    for source in world.sources:
        print(
            f"{source}: stream", [one.numbers or one.gap or one.table for one in world.told(source)]
        )
        print(
            f"{source}: source",
            [(hex(lsn), number) for lsn, number, _ in world.truth(source).changes],
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", type=lambda text: tuple(text.split(",")), default=CLASSES)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--failures-max", type=int, default=20)
    parser.add_argument("--shrunk-max", type=int, default=3)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--level", default="INFO")
    options = parser.parse_args()
    if not (options.show or options.shrink):
        return 1 if run_all(options) else 0
    plan = drawn(options.seed, options.kinds)
    plan = smallest(plan) if options.shrink else plan
    show(plan, options.level)
    return 0


if __name__ == "__main__":
    sys.exit(main())
