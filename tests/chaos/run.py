"""A run of chaos: writers, faults and the checker in parallel, then a period without faults, then
the verdict.

Promises that a run prints its seed first, and that the seed repeats the same sequence of faults.
Their effects also depend on the machine's timing.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import attached
from tests.chaos.checker import BrokenPromiseError, Checker
from tests.chaos.faults import Faults
from tests.chaos.judge import Judge
from tests.chaos.source import Account, Writer, prepare, rows_of
from tests.chaos.world import World, world

# On a machine that does other things too; an idle one needs some seconds.
CALM_S = 600.0
_LOOK_S = 1.0


@dataclass
class Verdict:
    seed: int
    delivery: str
    minutes: float
    broken: str = ""
    changes: int = 0
    transactions: int = 0
    calm_s: float = 0.0
    lag_max: int = 0
    readings: int = 0
    lost: int = 0
    gaps: int = 0
    jumps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    exits: Counter[str] = field(default_factory=Counter)
    crashes: list[str] = field(default_factory=list)
    rss_max_mib: dict[str, float] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        return not self.broken and not self.crashes

    def text(self) -> str:
        lines = [
            (
                f"chaos: {'PASSED' if self.kept else 'FAILED'} seed={self.seed} "
                f"delivery={self.delivery}"
            ),
            f"  {self.minutes:.1f} minutes, {sum(self.faults.values())} faults",
            f"  {self.transactions} transactions, {self.changes} changes checked",
            (
                f"  at most {self.lag_max} changes behind; all delivered {self.calm_s:.1f} s after "
                "the last fault"
            ),
        ]
        lines += (
            [f"  {self.readings} readings of mirrors, each one moment"] if self.readings else []
        )
        if self.lost or self.gaps:
            lines.append(
                f"  {self.lost} changes lost, all reported: {self.gaps} gap events, "
                f"{self.jumps} jumps of the sequence"
            )
        lines += [f"  {count:4} {kind}" for kind, count in self.faults.most_common()]
        lines += [f"  {count:4} exits: {what}" for what, count in self.exits.most_common()]
        lines += [
            f"  {service} held at most {mib:.0f} MiB"
            for service, mib in sorted(self.rss_max_mib.items())
        ]
        lines += [f"  CRASH {crash}" for crash in self.crashes[:10]]
        if self.broken:
            lines.append(f"  BROKEN {self.broken}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Run:
    """The parts of a run."""

    minutes: float
    seed: int
    delivery: str
    rows_per_s: float
    keep: str = ""
    own_network: bool = False
    everything: bool = False
    damage: bool = False


async def run(asked: Run, log: Callable[[str], None]) -> Verdict:
    """One run; the verdict."""
    verdict = Verdict(asked.seed, asked.delivery, asked.minutes)
    async with world(
        asked.delivery,
        own_network=asked.own_network,
        everything=asked.everything,
        damages=asked.damage,
    ) as made:
        await prepare(made.postgres, attached.PUBLISHED if asked.everything else "FOR ALL TABLES")
        if asked.everything:
            await attached.prepare(made.postgres)
        for instance in made.instances:
            await instance.suite.start(instance.service)
        try:
            await _reign(made, verdict, asked.rows_per_s, log)
        except BrokenPromiseError as error:
            verdict.broken = str(error)
        except Exception as error:  # noqa: BLE001  # the logs are wanted in any case, and the other deliveries
            verdict.broken = f"the run itself failed: {error!r}"
        for instance in made.instances:
            with contextlib.suppress(KeyError):
                await instance.suite.kill(instance.service)
        verdict.crashes = made.crashes()
        verdict.exits, verdict.rss_max_mib = made.exits, made.rss_max_mib
        if asked.keep and not verdict.kept:
            _keep_logs(made, asked.keep)
    return verdict


async def _reign(
    made: World, verdict: Verdict, rows_per_s: float, log: Callable[[str], None]
) -> None:
    faults = Faults(made, verdict.seed, log)
    writers: list[Writer] = [
        Writer(made.postgres, verdict.seed + number, rows_per_s / 2) for number in (1, 2)
    ]
    account, checker, enough = Account(made.postgres), Checker(verdict.delivery), asyncio.Event()
    verdict.faults = faults.count
    watch = (
        attached.Watch(made.postgres, made.nats.url, made.folder, damages=made.damages)
        if made.archive is not None
        else None
    )
    supervisor = asyncio.create_task(made.supervise(), name="supervisor")
    if watch is not None:
        writers.append(attached.AttachedWriter(made.postgres, verdict.seed, rows_per_s))
    writing = [asyncio.create_task(writer.run(), name="writer") for writer in writers]
    reigning = asyncio.create_task(faults.run(enough), name="faults")
    deadline = time.monotonic() + verdict.minutes * 60
    try:
        while time.monotonic() < deadline:
            await _look(made, account, checker, verdict)
            if watch is not None:
                await watch.look()
            # Faults first: one that failed leaves the supervisor without what it looks for.
            for task in (reigning, *writing, supervisor):
                if task.done():
                    task.result()
        enough.set()
        await reigning
        for writer in writers:
            writer.enough.set()
        await asyncio.gather(*writing)
        log("calm")
        if made.damages:
            checker = await _judged(made, account, verdict)
        else:
            await _calm(made, account, checker, verdict)
        if watch is not None:
            assert made.archive is not None
            await watch.equal(checker, made.archive, verdict.delivery, log)
            verdict.readings = watch.readings
    finally:
        verdict.changes = verdict.changes or checker.checked
        verdict.transactions = sum(writer.transactions for writer in writers)
        enough.set()
        for task in (supervisor, *writing, reigning):
            task.cancel()
        await asyncio.gather(supervisor, *writing, reigning, return_exceptions=True)


async def _look(made: World, account: Account, checker: Checker, verdict: Verdict) -> bool:
    """Take what is new on both sides; whether PostgreSQL had anything."""
    committed = await account.more()
    if made.damages:
        made.committed += committed
        await asyncio.sleep(_LOOK_S)
        return bool(committed)
    checker.committed(committed)
    await checker.follow(made.nats.url)
    verdict.lag_max = max(verdict.lag_max, checker.waiting)
    verdict.changes = checker.checked
    await asyncio.sleep(_LOOK_S)
    return bool(committed)


async def _calm(made: World, account: Account, checker: Checker, verdict: Verdict) -> None:
    """Nothing fails any more: everything that was committed must come, and nothing else."""
    began = time.monotonic()
    while await _look(made, account, checker, verdict) or not checker.settled:
        if time.monotonic() - began > CALM_S:
            raise BrokenPromiseError(
                f"{checker.waiting} changes are still missing {CALM_S:.0f} s after the last fault; "
                f"the stream is at {checker.position}"
            )
    verdict.calm_s = time.monotonic() - began
    await asyncio.sleep(2)
    await _look(made, account, checker, verdict)
    if not checker.settled:
        raise BrokenPromiseError("something came after everything had come")
    if checker.rows != await rows_of(made.postgres):
        raise BrokenPromiseError("the rows that the events add up to are not the tables'")


async def _judged(made: World, account: Account, verdict: Verdict) -> Judge:
    """Nothing fails any more: all committed changes must be in the stream, or reported."""
    began = time.monotonic()
    while True:
        made.committed += await account.more()
        judge = Judge(verdict.delivery, made.committed)
        await judge.follow(made.nats.url)
        verdict.changes, verdict.lost = judge.checked, judge.lost
        verdict.gaps, verdict.jumps = len(judge.gaps), judge.jumps
        verdict.calm_s = time.monotonic() - began
        if not judge.unexplained:
            return judge
        if verdict.calm_s > CALM_S:
            raise BrokenPromiseError(
                f"{len(judge.unexplained)} changes are neither in the stream nor reported, the "
                f"first {judge.unexplained[0]}"
            )
        await asyncio.sleep(5)


def _keep_logs(made: World, folder: str) -> None:
    for path in made.folder.glob("*/*.log"):
        shutil.copy(path, Path(folder) / f"{path.parent.name}-{path.name}")
