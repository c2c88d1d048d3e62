"""What can go wrong, each fault with its own beginning and end. Which, when and how long is the seed's to say."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.chaos.world import Instance, World

from headrace.testing.proxy import Proxy

PAUSE_S = (0.2, 4.0)
AT_ONCE_MAX = 3
_DISK_MARGIN_BYTES = 128 * 1024

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
        """Faults until told to stop; returns when all have ended and healed."""
        async with asyncio.TaskGroup() as group:
            while not until.is_set():
                await asyncio.sleep(self._chance.uniform(*PAUSE_S))
                kind, target, fault = self._draw()
                if until.is_set() or target in self._busy or len(self._busy) >= AT_ONCE_MAX:
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
        # Every draw uses as many random numbers whatever comes of it, so that a seed repeats its sequence.
        roll, choice, long = self._chance.random(), self._chance.random(), self._chance.random()
        instance = self._chance.choice(self._world.instances)
        if roll < 0.30:
            return self._on_process(instance, choice, long)
        if roll < 0.72:
            return self._on_link(instance, choice, long)
        return self._on_server(choice, long)

    def _on_process(self, instance: Instance, choice: float, long: float) -> tuple[str, str, Fault]:
        if choice < 0.5:
            return "kill -9 of a service", instance.name, lambda: self._killed(instance, long * 3)
        if choice < 0.8:
            return "SIGSTOP of a service", instance.name, lambda: self._frozen(instance, 0.2 + long * 8)
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
            ("half-open, the server knows", lambda: proxy.half_open(server_knows=True)),
            ("half-open, the client knows", lambda: proxy.half_open(server_knows=False)),
            ("bytes to the server lost", lambda: proxy.lose(from_server=False)),
            ("bytes from the server lost", lambda: proxy.lose(from_server=True)),
        ]
        kind, begin = kinds[int(choice * len(kinds))]
        # Twice as long as a connection is given to answer, now and then: what is half open must be noticed.
        return kind, target, lambda: self._on_proxy(proxy, begin, seconds if long < 0.9 else 25.0)

    def _on_server(self, choice: float, long: float) -> tuple[str, str, Fault]:
        nats, postgres = self._world.nats, self._world.postgres
        if choice < 0.35:
            return "kill -9 of nats-server", "nats-server", lambda: _down(nats.kill, nats.start, long * 4)
        if choice < 0.5:
            return "restart of nats-server", "nats-server", lambda: _down(nats.stop, nats.start, long * 2)
        if choice < 0.6 and self._world.store is not None:
            return "disk of JetStream full", "nats-server", lambda: self._disk_full(1 + long * 4)
        if choice < 0.75:
            return "kill -9 of PostgreSQL", "PostgreSQL", lambda: _down(postgres.kill, postgres.start, long * 2)
        if choice < 0.88:
            immediate = lambda: postgres.stop("immediate")  # noqa: E731  # reads as the sentence it is
            return "immediate restart of PostgreSQL", "PostgreSQL", lambda: _down(immediate, postgres.start, long)
        return "fast restart of PostgreSQL", "PostgreSQL", lambda: _down(postgres.stop, postgres.start, long)

    async def _killed(self, instance: Instance, down_s: float) -> None:
        async with instance.verb:
            if instance.running:
                await instance.suite.kill(instance.service)
            await asyncio.sleep(down_s)
            await instance.suite.start(instance.service)

    async def _stopped(self, instance: Instance, down_s: float) -> None:
        async with instance.verb:
            if instance.running:
                code = await instance.suite.stop(instance.service)
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
            proxy.delay_s = 0.0
            proxy.heal()

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


async def _down(stop: Callable[[], Awaitable[None]], start: Callable[[], Awaitable[None]], seconds: float) -> None:
    await stop()
    try:
        await asyncio.sleep(seconds)
    finally:
        await start()
