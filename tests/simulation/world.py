"""The world of one history: a NATS server, a PostgreSQL, and Headrace's own services as processes.

The services are the real ones, started as their processes start them, with a NATS client on the
simulated wire and a replication connection to the simulated server. A supervisor restarts processes
that were killed or gave up.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from functools import cache, partial
from typing import Any
from unittest import mock

from nats.js.kv import KeyValue

import headrace.archiver.service as archiver_service
import headrace.publisher.service as publisher_service
import headrace.wal_reader.service as reader_service
from headrace.archiver import file_writer
from headrace.errors import HeadraceError
from headrace.jetstream import provisioning
from headrace.postgres import catalog as real_catalog
from headrace.postgres import connection as real_connection
from headrace.postgres.replication import ReplicationConnection
from headrace.process.health import Health
from headrace.process.lifecycle import Scope
from headrace.publisher import catalog_watch
from tests.simulation import catalog
from tests.simulation.archive import Archived
from tests.simulation.client import SimClient, list_keys, watch
from tests.simulation.clockwork import PROCESS, Process, VirtualLoop, virtual_clocks
from tests.simulation.objects import Objects, SimStore
from tests.simulation.oracle import (
    Said,
    Truth,
    ViolationError,
    check_stream,
    covered,
    gaps_of,
    said,
)
from tests.simulation.plan import Plan
from tests.simulation.postgres import Cluster, Replication, Slot
from tests.simulation.postgres import Server as Postgres
from tests.simulation.server import Server
from tests.simulation.settings import BASE, settings_of
from tests.simulation.shortcuts import shortcuts
from tests.simulation.steps import Steps
from tests.simulation.stream import Stored, Stream

HEAL_S = 30.0
# How often a history is asked whether it has arrived.
_LOOK_S = 0.25
_LOOKS_PER_RECORD = 4
_COLLECT_AFTER = 50_000
# How long a service may take to stop.
_STOP_S = 2.0
_SERVICES = {"publisher": publisher_service, "reader": reader_service, "archiver": archiver_service}


class World:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.chance = random.Random(plan.seed ^ 0x5EED)
        self.loop = VirtualLoop()
        self.server = Server(self.loop, self.chance)
        self.postgres = Postgres(self.chance)
        self.sources = ["a", "b"][: plan.options["sources"]]
        self.settings = {one: settings_of(plan.options, one) for one in self.sources}
        self.processes: dict[str, Process] = {}
        self.zombies: list[Process] = []
        self.numbers = 0
        self.quiet = logging.CRITICAL
        # Of each source: where its first slot began, what the stream ever had, and its end where it
        # was found to be another history.
        self.begins: dict[str, int] = {}
        self.ever: dict[str, set[int]] = {one: set() for one in self.sources}
        self.gaps: dict[str, list[tuple[int, int, str]]] = {one: [] for one in self.sources}
        self.diverged: set[str] = set()
        self.begun: set[str] = set()
        self.copied: dict[tuple[str, str], int] = {}
        # How far a store comes back at least: a bucket that never knew the source can't report the
        # loss, if PostgreSQL has forgotten that the slot was used.
        self.kept_least: dict[str, int] = {}
        self.crashes: list[str] = []
        # Foreseen errors that ended a process: another instance may continue.
        self.ends: list[str] = []
        # Of each source with an archive: its store, and what the files say.
        self.objects: dict[str, Objects] = {}
        self.archived: dict[str, Archived] = {}
        # The slot's place when the archive had no file yet, after all that moved it.
        self.archive_begins: dict[str, int] = {}
        if self.plan.options.get("archive"):
            self._archive()
        self.server.on_stored = self.on_stored
        self.postgres.on_told = self.on_told
        self.steps = Steps(self)

    def _archive(self) -> None:
        self.loop.thread_s = self.postgres.latency
        self.loop.threads_send = True
        for source in self.sources:
            self.archived[source] = Archived()
            self.objects[source] = Objects(self.server, self.chance)
            self.objects[source].on_put = self.archived[source].on_put

    @property
    def archive_required(self) -> bool:
        return self.plan.options.get("archive_required") == "true"

    def store(self, url: str, **given: Any) -> SimStore:
        process = PROCESS.get()
        assert process is not None
        return SimStore(self.objects[process.name.rpartition(".")[2]], url, **given)

    # What the world sees.

    def on_stored(self, stream: Stream, stored: Stored) -> None:
        if ".progress." in stored.subject and stored.subject not in self.begun:
            self.begun.add(stored.subject)
            self.kept_least[stream.name] = stored.seq
        if stream.name != BASE.streams.cdc:
            return
        what = said(stored.payload)
        source = what.source.removeprefix("source_")
        self.ever[source].update(number for number, _ in what.numbers)
        if what.gap is not None:
            self.gaps[source].append(what.gap)
        if what.resync:
            tables = self.postgres.primary.tables.values()
            rewrites = next((one.rewrites for one in tables if one.name == what.table), 0)
            self.copied[source, what.table] = rewrites

    def on_told(self, cluster: Cluster, slot: Slot, confirmed: int) -> None:
        """PostgreSQL hears that everything before `confirmed` is durable."""
        source = slot.name.removeprefix("source_")
        if cluster is not self.postgres.primary:
            return
        for commit, number, _ in self.truth(source).changes:
            if commit >= confirmed:
                break
            if number not in self.ever[source] and not covered(commit, self.gaps[source]):
                raise ViolationError(
                    f"{slot.name} was confirmed up to {confirmed:x}, and change {number} of "
                    f"{commit:x} was never in the stream"
                )
        if self.archive_required:
            self._check_archived(source, confirmed)

    def _check_archived(self, source: str, confirmed: int) -> None:
        archived = self.archived[source]
        begins = self.archive_begins[source]
        for commit, number, _ in self.archivable(source).changes:
            if commit >= confirmed:
                break
            if commit < begins:
                continue
            if number not in archived.numbers and not covered(commit, archived.gaps):
                raise ViolationError(
                    f"the slot of {source} was confirmed up to {confirmed:x}, and change {number} "
                    f"of {commit:x} was never in the archive"
                )

    def truth(self, source: str) -> Truth:
        return self._committed(source, messages=bool(self.plan.options["prefix"]))

    def archivable(self, source: str) -> Truth:
        """The archive has the whole log, with every emitted message."""
        return self._committed(source, messages=True)

    def _committed(self, source: str, *, messages: bool) -> Truth:
        begins = self.begins.get(source)
        if begins is None:
            return Truth()
        return Truth.of(self.postgres.primary, f"pub_{source}", begins, messages=messages)

    def told(self, source: str) -> list[Said]:
        stream = self.server.streams.get(BASE.streams.cdc)
        found = [said(one.payload) for one in stream.messages.values()] if stream else []
        return [one for one in found if one.source == f"source_{source}"]

    # Processes.

    def begin(self, service: str, source: str) -> None:
        process = Process(f"{service}.{source}")
        self.processes[process.name] = process
        self.loop.begin(process, self._life(process, service, source))

    async def _life(self, process: Process, service: str, source: str) -> None:
        settings = self.settings[source]
        try:
            async with asyncio.TaskGroup() as tasks:
                process.scope = scope = Scope(service, settings.process, tasks, Health(service))
                try:
                    await _SERVICES[service].run(scope, settings)
                finally:
                    scope.stopping.set()
        except BaseExceptionGroup as group:
            process.ended = group
        except Exception as error:  # noqa: BLE001  # judged by the supervisor
            process.ended = error
        process.done = True
        self.loop.kill(process)
        self.server.at(self.loop.now, self._ended, (process, service, source))

    def _ended(self, message: tuple[Process, str, str]) -> None:
        process, service, source = message
        for error in leaves(process.ended):
            if type(error).__name__ == "SourceDivergedError":
                self.diverged.add(source)
            elif isinstance(error, HeadraceError):
                self.ends.append(f"{process.name}: {error!r}")
            else:
                self.crashes.append(f"{process.name}: {error!r}")
        if self.processes.get(process.name) is process and source not in self.diverged:
            self._start_again(service, source)

    def after(self, seconds: float, call: Callable[..., None], what: Any) -> None:
        """Have something happen later, of nobody's process."""
        self.server.at(self.loop.now + seconds, call, what)

    def _start_again(self, service: str, source: str) -> None:
        after = self.chance.choice((0.01, 0.1, 1.0))
        self.server.at(self.loop.now + after, self._started, (service, source))

    def _started(self, message: tuple[str, str]) -> None:
        self.begin(*message)

    def client(self) -> SimClient:
        process = PROCESS.get()
        made = SimClient(self.server, process, copy_context())
        if self.server.up:
            made.open()
        else:
            made._status = SimClient.RECONNECTING  # as one that lost its server
            made._again()  # as above
        return made

    async def on_the_bus(self, *given: Any, **_: Any) -> None:
        """In place of the service's own: no port, and a simulated connection."""
        work = next(one for one in given if inspect.iscoroutinefunction(one))
        scope = next(one for one in given if isinstance(one, Scope))
        await work(self.client())
        scope.stopping.set()

    def kill(self, service: str, source: str) -> None:
        process = self.processes.get(f"{service}.{source}")
        if process is None or process.dead:
            return
        self.loop.kill(process)
        self._start_again(service, source)

    def slot_moved(self, source: str, to: int) -> None:
        """By somebody else: an archive without files knows of nothing that it could miss."""
        if source in self.archived and not self.archived[source].files:
            self.archive_begins[source] = to

    def stop(self, service: str, source: str) -> None:
        """In order, or killed if that takes too long."""
        process = self.processes.get(f"{service}.{source}")
        if process is None or process.scope is None:
            return
        process.scope.stopping.set()
        self.after(_STOP_S, self._stopped, (process, service, source))

    def _stopped(self, message: tuple[Process, str, str]) -> None:
        process, service, source = message
        if self.processes.get(process.name) is process:
            self.kill(service, source)

    def sleep(self, service: str, source: str, seconds: float) -> None:
        """Long enough for its heir, if it is long."""
        process = self.processes.get(f"{service}.{source}")
        if process is None or process.dead or process.asleep:
            return
        self.loop.sleep(process)
        self.server.at(self.loop.now + seconds, self.loop.wake, process)
        if service != "reader":
            # A standby takes over; both are one's to watch.
            self.zombies.append(process)
            self._start_again(service, source)

    # A history.

    def live(self) -> None:
        """From the beginning to the good end, or to a violation."""
        before = logging.root.manager.disable
        logging.disable(self.quiet)
        with rarely_collected(), self._patched(), virtual_clocks(self.loop, self.chance):
            try:
                self._live()
            finally:
                self.loop.bury()
                logging.disable(before)

    def _live(self) -> None:
        cluster = self.postgres.primary
        cluster.tables = {
            oid: catalog.table(oid, f"{source}_{name}", f"pub_{source}")
            for source in self.sources
            for oid, name in ((1000 + ord(source), "t"), (2000 + ord(source), "u"))
        }
        for config in provisioning.declared(self.settings["a"].streams):
            self.server._create(config.as_dict())  # as `headrace init`
        for source in self.sources:
            name = f"source_{source}"
            cluster.slots[name] = Slot(name, cluster.end, cluster.end)
            self.begins[source] = cluster.end
            self.begin("reader", source)
            self.begin("publisher", source)
            if source in self.archived:
                self.archive_begins[source] = cluster.end
                self.begin("archiver", source)
        for step in self.plan.steps:
            self.loop.run(step.at)
            self.steps.do(step)
        self._heal()

    def _heal(self) -> None:
        """Without faults everything arrives, or its absence is reported."""
        self.steps.calm()
        deadline = self.loop.now + HEAL_S
        # A loss is noticed by the changes behind it.
        self.steps.commit_all()

        self.loop.run(self.loop.now + self._patience_s())
        looks = 0
        while not (self._settled() or self.crashes) and self.loop.now <= deadline:
            if looks % _LOOKS_PER_RECORD == 0:
                # PostgreSQL itself writes a record now and then.
                self.postgres.primary.record()
                self.postgres.primary.wake()
            looks += 1
            if any(not one.files for one in self.archived.values()):
                # One that came too late for all changes so far.
                self.steps.commit_all()
            self.loop.run(self.loop.now + _LOOK_S)
        if self.crashes:
            raise ViolationError(f"a service crashed: {sorted(set(self.crashes))[:3]}")
        for source in self.sources:
            self._check(source)
        if self.loop.now > deadline:
            raise ViolationError(
                f"without faults the line stands still: {self._standing()}, {self.ends[-1:]}"
            )

    def _patience_s(self) -> float:
        """How long it may take until the last rewrite is seen."""
        if not any(table.rewrites for table in self.postgres.primary.tables.values()):
            return 0.0
        return 2 * float(self.plan.options["catalog_s"]) + 1.0

    def _standing(self) -> str:
        stream = self.server.streams.get(BASE.streams.cdc)
        slots = {name: f"{slot.confirmed:x}" for name, slot in self.postgres.primary.slots.items()}
        last = stream.last_seq if stream else None
        return f"stream at {last}, slots at {slots}, log ends at {self.postgres.primary.end:x}"

    def _settled(self) -> bool:
        return all(self._is_settled(source) for source in self.sources)

    def _is_settled(self, source: str) -> bool:
        if source in self.diverged:
            return True
        slot = self.postgres.primary.slots.get(f"source_{source}")
        if slot is None or any(zombie.asleep for zombie in self.zombies):
            return False
        last = max((one.commit for one in self.postgres.primary.transactions), default=0)
        return slot.confirmed > last and self._has_all(source)

    def _has_all(self, source: str) -> bool:
        try:
            self._check(source)
        except ViolationError:
            # It may still come; at the deadline it is one.
            return False
        return True

    def _check(self, source: str) -> None:
        if source in self.archived and source not in self.diverged:
            self._check_archive(source)
        truth, told = self.truth(source), self.told(source)
        lanes = self.plan.options["mode"] == "batch"
        if source not in self.diverged:
            check_stream(truth, told, lanes=lanes)
            self._check_copies(source)
            return
        if not any(gap[2] == "source_diverged" for gap in gaps_of(told)):
            raise ViolationError("the source is another, and the stream does not report it")
        known = {number for _, number, _ in truth.changes}
        if all(number in known for one in told for number, _ in one.numbers):
            raise ViolationError("the source is the same, and was taken for another")

    def _check_archive(self, source: str) -> None:
        archived = self.archived[source]
        if not archived.files:
            raise ViolationError(f"the archive of {source} has no file")
        begins = self.archive_begins[source]
        if not self.archive_required:
            # One that came too late for its first changes begins behind them.
            begins = archived.begins
        archived.check(self.archivable(source), begins)

    def _check_copies(self, source: str) -> None:
        """A reader that copied a table when the stream required it has its current rows."""
        for table in self.postgres.primary.tables.values():
            copied = self.copied.get((source, table.name))
            if copied is not None and copied != table.rewrites:
                raise ViolationError(
                    f"{table.name} was rewritten {table.rewrites} times, and no event asked for a "
                    f"copy since the {copied}th"
                )

    @contextmanager
    def _patched(self) -> Iterator[None]:
        async def opened(settings: Any, application: str) -> Replication:  # as there
            made = await self.postgres.open(application)
            made.process = PROCESS.get()
            return made

        async def connected(settings: Any, name: str) -> catalog.Session:  # as there
            made = catalog.Session(self.postgres)
            await made.ask()
            return made

        with shortcuts(), ExitStack() as stack:
            put = partial(_put, stack)
            for module in _SERVICES.values():
                put(module, "on_the_bus", self.on_the_bus)
            put(archiver_service, "Store", self.store)
            # It is about the memory of a process, which is not the archiver's here.
            put(file_writer, "give_back", lambda: None)
            put(ReplicationConnection, "open", opened)
            put(real_connection, "connect", connected)
            put(real_catalog, "table_facts", catalog.table_facts)
            put(real_catalog, "relations_now", catalog.relations_now)
            put(catalog_watch, "read_publication", catalog.read_publication)
            put(KeyValue, "watch", watch)
            put(KeyValue, "keys", list_keys)
            yield


def _put(stack: ExitStack, module: Any, name: str, what: Any) -> None:
    stack.enter_context(mock.patch.object(module, name, what))


@contextmanager
def rarely_collected() -> Iterator[None]:
    """As services have it (`headrace.process.lifecycle`); a history leaves little behind."""
    before = gc.get_threshold()
    _freeze()
    gc.set_threshold(_COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@cache
def _freeze() -> None:
    """Everything imported stays: looking through it again and again takes a tenth of the time."""
    gc.collect()
    gc.freeze()


def leaves(error: BaseException | None) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from leaves(one)
    elif error is not None:
        yield error


def history(plan: Plan) -> World:
    """Live through a plan; raises `ViolationError`."""
    world = World(plan)
    world.live()
    return world
