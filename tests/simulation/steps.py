"""The steps of a history, each under its name in a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.catalog import Table
from tests.simulation.plan import Step
from tests.simulation.postgres import Change
from tests.simulation.server import HICCUP
from tests.simulation.settings import BASE

if TYPE_CHECKING:
    from tests.simulation.world import World


class Steps:
    """The source's work, and everything that goes wrong."""

    def __init__(self, world: World) -> None:
        self._world = world
        # The share of messages between the services that core NATS loses now.
        self._lose = 0.0
        world.server.loses = self.loses

    def do(self, step: Step) -> None:
        getattr(self, step.what)(step)

    def changes(self, count: int) -> list[Change]:
        tables = list(self._world.postgres.primary.tables.values())
        made = []
        for _ in range(count):
            message = (
                bool(self._world.plan.options["prefix"]) and self._world.chance.random() < 0.25
            )
            made.append(self._change(None if message else self._world.chance.choice(tables)))
        return made

    def one_for_each_table(self) -> list[Change]:
        return [self._change(table) for table in self._world.postgres.primary.tables.values()]

    def _change(self, table: Table | None) -> Change:
        self._world.numbers += 1
        return Change(0, self._world.numbers, table, table.names if table else ())

    def commit(self, step: Step) -> None:
        early = self._world.chance.choice((0, 0, 2))
        self._world.postgres.primary.commit(self.changes(int(step.much)), early)

    def commit_all(self, _: Step | None = None) -> None:
        """A transaction with all tables."""
        self._world.postgres.primary.commit(self.one_for_each_table(), 0)

    def emit(self, _: Step) -> None:
        self._world.numbers += 1
        self._world.postgres.primary.emit(Change(0, self._world.numbers, None))

    def idle(self, step: Step) -> None:
        """Records of nobody's."""
        self._world.postgres.primary.record(int(step.much) * 8)
        self._world.postgres.primary.wake()

    def _ddl(self) -> tuple[Table, int]:
        cluster = self._world.postgres.primary
        table = self._world.chance.choice(list(cluster.tables.values()))
        cluster.commit([], 0)
        return table, cluster.next_xid - 1

    def add(self, _: Step) -> None:
        table, xid = self._ddl()
        table.add(xid, filled=False)

    def add_filled(self, _: Step) -> None:
        table, xid = self._ddl()
        table.add(xid, filled=True)

    def rename(self, _: Step) -> None:
        table, xid = self._ddl()
        table.rename(xid)

    def rewrite(self, _: Step) -> None:
        table, xid = self._ddl()
        table.rewrite(xid)

    def kill_publisher(self, step: Step) -> None:
        self._world.kill("publisher", step.to)

    def kill_reader(self, step: Step) -> None:
        process = self._world.processes.get(f"reader.{step.to}")
        self._world.kill("reader", step.to)
        for connection in tuple(self._world.postgres.primary.connections):
            if connection.process is process:
                connection.close()

    def sleep_publisher(self, step: Step) -> None:
        self._world.sleep("publisher", step.to, 0.5 + 4 * step.much)

    def sleep_reader(self, step: Step) -> None:
        self._world.sleep("reader", step.to, 0.5 + 4 * step.much)

    def kill_archiver(self, step: Step) -> None:
        self._world.kill("archiver", step.to)

    def sleep_archiver(self, step: Step) -> None:
        self._world.sleep("archiver", step.to, 0.5 + 4 * step.much)

    def stop_archiver(self, step: Step) -> None:
        """As SIGTERM does."""
        self._world.stop("archiver", step.to)

    def stop_archiver_blind(self, step: Step) -> None:
        self._blind(step, self.stop_archiver)

    def stop_publisher(self, step: Step) -> None:
        self._world.stop("publisher", step.to)

    def stop_publisher_blind(self, step: Step) -> None:
        self._blind(step, self.stop_publisher)

    def stop_reader(self, step: Step) -> None:
        self._world.stop("reader", step.to)

    def _blind(self, step: Step, stop: Callable[[Step], None]) -> None:
        """While the catalog answers nobody, though the log comes."""
        self._world.postgres.catalog_up = False
        self._world.after(step.much / 2, stop, step)
        self._world.after(step.much, self._catalog_back, None)

    def _catalog_back(self, _: None) -> None:
        self._world.postgres.catalog_up = True

    def cut_archiver(self, step: Step) -> None:
        self._cut(f"archiver.{step.to}")

    def trouble_objects(self, step: Step) -> None:
        """For a while many operations on the object store fail, in all ways."""
        for objects in self._world.objects.values():
            objects.trouble = 0.5
        self._world.after(2 * step.much, self._trouble_nothing, None)

    def _trouble_nothing(self, _: None) -> None:
        for objects in self._world.objects.values():
            objects.trouble = 0.0

    def _cut(self, name: str) -> None:
        for connection in tuple(self._world.server.connections):
            process = connection.client.process
            if process is not None and process.name == name:
                connection.drop()
                connection.client.lost(connection)

    def cut_publisher(self, step: Step) -> None:
        self._cut(f"publisher.{step.to}")

    def cut_reader(self, step: Step) -> None:
        self._cut(f"reader.{step.to}")

    def cut_postgres(self, _: Step) -> None:
        for connection in tuple(self._world.postgres.primary.connections):
            connection.cut()

    def lose(self, step: Step) -> None:
        """For a while core NATS loses messages between the services."""
        self._lose = 0.3
        self._world.after(step.much, self._lose_nothing, None)

    def _lose_nothing(self, _: None) -> None:
        self._lose = 0.0

    def calm(self) -> None:
        """From here on nothing fails."""
        self._lose, self._world.server.hiccup = 0.0, 0.0
        self._trouble_nothing(None)
        self._catalog_back(None)

    def loses(self, subject: str) -> bool:
        return (
            self._lose > 0
            and subject.startswith("headrace.")
            and self._world.chance.random() < self._lose
        )

    def hiccups(self, step: Step) -> None:
        self._world.server.hiccup = 0.3
        self._world.after(2 * step.much, self._calm_down, None)

    def _calm_down(self, _: None) -> None:
        self._world.server.hiccup = HICCUP

    def restart_nats(self, step: Step) -> None:
        self._world.server.stop()
        self._world.after(step.much * 2, lambda _: self._world.server.start(), None)

    def _lost(self, step: Step, *names: str) -> None:
        """The server comes back with older stores."""
        self._world.server.stop()
        # A crash of PostgreSQL forgets that the slot was used: without it, a bucket that never knew
        # the source can't report the loss.
        kept_least = {} if self._world.plan.kind == "store" else self._world.kept_least
        for name in names:
            stream = self._world.server.streams.get(name)
            if stream is not None:
                least = kept_least.get(name, 0)
                at = self._world.chance.randint(max(least, stream.last_seq - 12), stream.last_seq)
                stream.lose_tail(max(at, least), self._world.loop.now)
        self._world.after(step.much, lambda _: self._world.server.start(), None)

    def lose_stream(self, step: Step) -> None:
        self._lost(step, BASE.streams.cdc)

    def lose_state(self, step: Step) -> None:
        self._lost(step, f"KV_{BASE.streams.state}")

    def lose_both(self, step: Step) -> None:
        self._lost(step, BASE.streams.cdc, f"KV_{BASE.streams.state}")

    def wipe_stream(self, _: Step) -> None:
        """The stream is deleted."""
        self._world.server.streams.pop(BASE.streams.cdc, None)

    def lose_everything(self, step: Step) -> None:
        """The server comes back without any store."""
        self._world.server.stop()
        self._world.server.streams.clear()
        self._world.after(step.much, lambda _: self._world.server.start(), None)

    def restart_postgres(self, step: Step) -> None:
        primary = self._world.postgres.primary
        primary.crash(self._world.chance)
        primary.up = False

        def up(_: None) -> None:
            primary.up = True

        self._world.after(step.much, up, None)

    def move_slot(self, step: Step) -> None:
        """Somebody moves it on, or drops it and makes it again."""
        slot = self._world.postgres.primary.slots.get(f"source_{step.to}")
        if slot is not None and self._has_begun(step.to):
            for connection in tuple(self._world.postgres.primary.connections):
                connection.cut()
            slot.confirmed = slot.durable = self._world.postgres.primary.end
            self._world.slot_moved(step.to, slot.confirmed)

    def _has_begun(self, source: str) -> bool:
        """Before a source begins there is nothing that could be missing."""
        state = self._world.server.streams.get(f"KV_{BASE.streams.state}")
        written = state is not None and (
            f"$KV.{BASE.streams.state}.progress.source_{source}" in state.by_subject
        )
        return written or bool(self._world.ever[source])

    def drop_slot(self, step: Step) -> None:
        if not self._has_begun(step.to):
            return
        for connection in tuple(self._world.postgres.primary.connections):
            connection.cut()
        self._world.postgres.primary.slots.pop(f"source_{step.to}", None)

    def promote(self, step: Step, *, behind: float = 0.5) -> None:
        """A standby becomes the primary; it may be behind."""
        old = self._world.postgres.primary
        ends = [one.end for one in old.transactions] or [old.end]
        at = old.end if step.much < behind else ends[max(0, len(ends) - 1 - int(step.much * 6))]
        slots = {name: min(slot.durable, at) for name, slot in old.slots.items()}
        self._world.postgres.primary = old.promoted(at, slots)
        old.up = False
        old.crash(self._world.chance)

    def promote_abrupt(self, step: Step) -> None:
        self.promote(step, behind=0.1)
