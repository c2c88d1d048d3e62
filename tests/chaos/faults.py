"""The faults, each with its start and end. The seed decides which of them happen, when, and for how
long.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from headrace.testing.clock import ClockUnmovableError, move_clock
from headrace.testing.proxy import Proxy
from tests.chaos import packets, store_damage
from tests.chaos.world import Instance, World

PAUSE_S = (0.2, 4.0)
AT_ONCE_MAX = 3
# A stop takes ten seconds at most, on a machine that does nothing else.
STOP_S = 60.0
_DISK_MARGIN_BYTES = 128 * 1024
_HOUR_S = 3600
# The share of faults that damage JetStream's store, where that is asked for.
_DAMAGE = 0.2
_DRIFT_STEP_S = 0.2

Fault = Callable[[], Awaitable[None]]


class Faults:
    """Draws faults, at most one on each thing at a time."""

    def __init__(self, world: World, seed: int, log: Callable[[str], None]) -> None:
        self._world = world
        self._chance = random.Random(seed)
        self._log = log
        self._busy: set[str] = set()
        self.count: Counter[str] = Counter()

    async def run(self, until: asyncio.Event) -> None:
        """Inject faults until the event is set; return when all of them have ended."""
        async with asyncio.TaskGroup() as group:
            while not until.is_set():
                await asyncio.sleep(self._chance.uniform(*PAUSE_S))
                kind, target, fault = self._draw()
                if (
                    until.is_set()
                    or not kind
                    or target in self._busy
                    or len(self._busy) >= AT_ONCE_MAX
                ):
                    continue
                self._busy.add(target)
                self.count[kind] += 1
                self._log(f"{kind} {target}")
                group.create_task(self._run(target, fault), name=f"{kind} {target}")

    async def _run(self, target: str, fault: Fault) -> None:
        try:
            await fault()
        finally:
            self._busy.discard(target)

    def _draw(self) -> tuple[str, str, Fault]:
        # Every draw uses the same number of random numbers, so that a seed repeats its
        # sequence.
        roll, choice, long = self._chance.random(), self._chance.random(), self._chance.random()
        instance = self._chance.choice(self._world.instances)
        if self._world.damages and roll < _DAMAGE:
            return "damage to JetStream's store", "nats-server", lambda: self._damaged(long)
        if roll < 0.26:
            return self._on_process(instance, choice, long)
        if roll < 0.58:
            return self._on_link(instance, choice, long)
        if roll < 0.70:
            return self._on_packets(instance, choice, long)
        if roll < 0.78:
            return self._on_clock(instance, choice, long)
        return self._on_server(choice, long)

    def _on_process(self, instance: Instance, choice: float, long: float) -> tuple[str, str, Fault]:
        if choice < 0.5:
            return "kill -9 of a service", instance.name, lambda: self._killed(instance, long * 3)
        if choice < 0.8:
            return (
                "SIGSTOP of a service",
                instance.name,
                lambda: self._frozen(instance, 0.2 + long * 8),
            )
        return "SIGTERM of a service", instance.name, lambda: self._stopped(instance, long * 2)

    def _on_link(self, instance: Instance, choice: float, long: float) -> tuple[str, str, Fault]:
        side = "nats" if int(choice * 1000) % 2 else "postgres"
        proxy = instance.to_nats if side == "nats" else instance.to_postgres
        target, seconds = f"{instance.name} to {side}", 0.2 + long * 8
        kinds: list[tuple[str, Callable[[], None]]] = [
            ("connections cut", proxy.cut),
            ("connections refused", proxy.refuse),
            ("network away, then back", proxy.stall),
            ("network slow", lambda: _slow(proxy, 0.002 + long / 10)),
            ("bytes in crumbs, at odd times", lambda: _crumble(proxy, 1 + int(long * 3000))),
            ("half-open, the server knows", lambda: proxy.half_open(server_knows=True)),
            ("half-open, the client knows", lambda: proxy.half_open(server_knows=False)),
            ("bytes to the server lost", lambda: proxy.lose(from_server=False)),
            ("bytes from the server lost", lambda: proxy.lose(from_server=True)),
        ]
        kind, begin = kinds[int(choice * len(kinds))]
        # Twice as long as a connection is given to answer, now and then: what is half open must be
        # noticed.
        return kind, target, lambda: self._on_proxy(proxy, begin, seconds if long < 0.9 else 25.0)

    def _on_packets(self, instance: Instance, choice: float, long: float) -> tuple[str, str, Fault]:
        side = "nats" if int(choice * 1000) % 2 else "postgres"
        port = (instance.to_nats if side == "nats" else instance.to_postgres).port
        target, seconds = f"{instance.name} to {side}", 1 + long * 8 if long < 0.9 else 25.0
        if not self._world.own_network:
            return "", target, _nothing
        if choice < 0.5:
            return "packets lost", target, lambda: self._lossy(port, 0.02 + long * 0.4, seconds)
        if choice < 0.7:
            return (
                "no packet reaches the server",
                target,
                lambda: self._one_way(port, seconds, from_server=False),
            )
        if choice < 0.9:
            return (
                "no packet reaches the client",
                target,
                lambda: self._one_way(port, seconds, from_server=True),
            )
        return "a narrow line for all", "network", lambda: self._narrow(1 + int(long * 8), seconds)

    def _on_clock(self, instance: Instance, choice: float, long: float) -> tuple[str, str, Fault]:
        offset_s = int((long - 0.5) * 2 * _HOUR_S)
        sign = "forward" if offset_s > 0 else "back"
        if not self._world.movable_clocks:
            return "", instance.name, _nothing
        if choice < 0.25:
            return (
                f"clock of nats-server {sign}",
                "nats-server",
                lambda: self._server_clock("nats", offset_s, long),
            )
        if choice < 0.4:
            return (
                f"clock of PostgreSQL {sign}",
                "PostgreSQL",
                lambda: self._server_clock("postgres", offset_s, long),
            )
        pid = lambda: [instance.suite.pid(instance.service)] if instance.running else []  # noqa: E731  # as below
        if choice < 0.6:
            return "clock of a service drifts", instance.name, lambda: _drifting(pid, 1 + long * 8)
        return (
            f"clock of a service {sign}",
            instance.name,
            lambda: _moved(pid, offset_s, 0.5 + long * 8),
        )

    def _on_server(self, choice: float, long: float) -> tuple[str, str, Fault]:
        nats, postgres = self._world.nats, self._world.postgres
        if choice < 0.35:
            return (
                "kill -9 of nats-server",
                "nats-server",
                lambda: _down(nats.kill, nats.start, long * 4),
            )
        if choice < 0.5:
            return (
                "restart of nats-server",
                "nats-server",
                lambda: _down(nats.stop, nats.start, long * 2),
            )
        if choice < 0.6 and self._world.store is not None:
            return "disk of JetStream full", "nats-server", lambda: self._disk_full(1 + long * 4)
        if choice < 0.75:
            return (
                "kill -9 of PostgreSQL",
                "PostgreSQL",
                lambda: _down(postgres.kill, postgres.start, long * 2),
            )
        if choice < 0.88:
            immediate = lambda: postgres.stop("immediate")  # noqa: E731  # reads as the sentence it is
            return (
                "immediate restart of PostgreSQL",
                "PostgreSQL",
                lambda: _down(immediate, postgres.start, long),
            )
        return (
            "fast restart of PostgreSQL",
            "PostgreSQL",
            lambda: _down(postgres.stop, postgres.start, long),
        )

    async def _killed(self, instance: Instance, down_s: float) -> None:
        async with instance.verb:
            if instance.running:
                await instance.suite.kill(instance.service)
            await asyncio.sleep(down_s)
            await instance.suite.start(instance.service)

    async def _stopped(self, instance: Instance, down_s: float) -> None:
        async with instance.verb:
            if instance.running:
                code = await instance.suite.stop(instance.service, STOP_S)
                self._world.exits[f"{instance.service} {code} when asked to stop"] += 1
            await asyncio.sleep(down_s)
            await instance.suite.start(instance.service)

    async def _frozen(self, instance: Instance, seconds: float) -> None:
        if not instance.running:
            return
        pid = instance.suite.pid(instance.service)
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)

    async def _on_proxy(self, proxy: Proxy, begin: Callable[[], None], seconds: float) -> None:
        begin()
        try:
            await asyncio.sleep(seconds)
        finally:
            proxy.delay_s, proxy.crumb_bytes_max = 0.0, 0
            proxy.restore()

    async def _lossy(self, port: int, ratio: float, seconds: float) -> None:
        packets.lose(port, ratio)
        try:
            await asyncio.sleep(seconds)
        finally:
            packets.deliver(port, ratio)

    async def _one_way(self, port: int, seconds: float, *, from_server: bool) -> None:
        packets.swallow(port, from_server=from_server)
        try:
            await asyncio.sleep(seconds)
        finally:
            packets.let_through(port, from_server=from_server)

    async def _narrow(self, mbit_per_s: int, seconds: float) -> None:
        packets.narrow(mbit_per_s)
        try:
            await asyncio.sleep(seconds)
        finally:
            packets.widen()

    async def _server_clock(self, server: str, offset_s: int, long: float) -> None:
        """Of all its processes; those that begin later inherit it from their parent."""
        pid = self._world.nats.pid if server == "nats" else self._world.postgres.pid
        await _moved(lambda: [pid, *_children(pid)], offset_s, 0.5 + long * 8)

    async def _damaged(self, long: float) -> None:
        await self._world.nats.kill()
        try:
            what = await asyncio.to_thread(store_damage.damage, self._world, long)
        finally:
            await self._world.nats.start()
        self._log(f"damaged: {what}")
        self.count[f"damaged: {what}"] += 1

    async def _disk_full(self, seconds: float) -> None:
        """Not one block left for JetStream; it is started again afterwards, as an operator would."""
        assert self._world.store is not None
        ballast = self._world.store / "ballast"
        await asyncio.to_thread(_fill, str(ballast))
        try:
            await asyncio.sleep(seconds)
        finally:
            ballast.unlink()
            await self._world.nats.restart()


def _fill(path: str) -> None:
    """Take what is free, in ever smaller pieces: JetStream writes meanwhile."""
    with open(path, "wb") as file:  # noqa: PTH123  # the descriptor is what is needed
        offset, piece = 0, 1 << 30
        while piece >= _DISK_MARGIN_BYTES:
            try:
                os.posix_fallocate(file.fileno(), offset, piece)
                offset += piece
            except OSError:
                piece //= 2


def _slow(proxy: Proxy, seconds: float) -> None:
    proxy.delay_s = seconds


def _crumble(proxy: Proxy, crumb_bytes_max: int) -> None:
    proxy.crumb_bytes_max = crumb_bytes_max


async def _nothing() -> None:
    """A fault that this machine does not allow."""


async def _moved(pids: Callable[[], list[int]], offset_s: int, seconds: float) -> None:
    _set_clocks(pids(), offset_s)
    try:
        await asyncio.sleep(seconds)
    finally:
        _set_clocks(pids(), 0)


async def _drifting(pids: Callable[[], list[int]], seconds: float) -> None:
    """Five seconds pass in each."""
    for step in range(int(seconds / _DRIFT_STEP_S)):
        _set_clocks(pids(), step)
        await asyncio.sleep(_DRIFT_STEP_S)
    _set_clocks(pids(), 0)


def _set_clocks(pids: list[int], offset_s: int) -> None:
    for pid in pids:
        try:
            move_clock(pid, offset_s)
        except (OSError, ClockUnmovableError):
            # It has ended, and what takes its place has the machine's clock; or it can't be halted
            # now.
            continue


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def _down(
    stop: Callable[[], Awaitable[None]], start: Callable[[], Awaitable[None]], seconds: float
) -> None:
    await stop()
    try:
        await asyncio.sleep(seconds)
    finally:
        await start()
