"""A world in one thread for the bus: PostgreSQL's slot, a lossy network, JetStream's rules, and
processes that die.

The state machines are the real ones (`FrameSender`, `FrameReceiver`, `Ledger`); the code that
drives them is a small version of the services. One seeded scheduler decides what happens next.
While it runs, it checks that PostgreSQL never receives too high an LSN and that the stream is a
prefix of what was committed; `restore` checks that everything arrives without faults.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

from headrace.bus.control import Control
from headrace.bus.frame import Opening
from headrace.bus.sender import LIFE_BITS, Action, FrameSender
from tests.property.bus.bus_confirmers import (
    ARCHIVER,
    PUBLISHER,
    Archive,
    Archiver,
    Confirmer,
    Publisher,
)
from tests.property.bus.bus_durable import (
    BrokenPromiseError,
    JetStream,
    Postgres,
    Sent,
)

FRAME_BYTES, CREDIT_BYTES = 96, 400
PING_S, HEAL_ROUNDS = 0.5, 600
PATIENCE_S = 10.0


class Reader:
    """A life of the wal-reader."""

    def __init__(self, world: World, clock_ns: int) -> None:
        self.world = world
        self.clock_ns = clock_ns
        self.sender = FrameSender(
            frozenset({PUBLISHER}) if world.optional else frozenset({PUBLISHER, ARCHIVER}),
            optional=frozenset({ARCHIVER}) if world.optional else frozenset(),
            patience_s=PATIENCE_S,
            frame_bytes_max=FRAME_BYTES,
            in_flight_bytes_max=CREDIT_BYTES,
            life=world.chance.getrandbits(LIFE_BITS),
        )
        self.source: deque[tuple[int, bytes]] | None = None
        self.read_to = 0
        self.adding: Iterator[bytes] = iter(())
        self.reopen = False
        self.pinged_at = -1.0

    def step(self) -> None:
        self.sender.tick(self.world.now)
        if self.source is None or self.reopen:
            self._begin()
        else:
            self._stream()

    def _begin(self) -> None:
        self.disconnect()
        if self.sender.missing:
            self._ping(self.sender.hello())
            return
        self.reopen = False
        start = self.world.postgres.confirmed
        opening = Opening(self.sender.sessions(), "slot", "db", "1", 1, start)
        self.world.broadcast(self.sender.begin(opening, clock_ns=self.clock_ns, now=self.world.now))
        self.source = self.world.postgres.stream(start, self.world.chance)
        self.read_to = self.world.postgres.end

    def disconnect(self) -> None:
        """The replication connection ended."""
        self.sender.close()
        self.source = None
        self.adding = iter(())

    def _stream(self) -> None:
        assert self.source is not None
        if self.world.now - self.pinged_at >= PING_S:
            self._ping(self.sender.ping())
        for _ in range(self.world.chance.choice((1, 5, 30))):
            if not self._send_one():
                break
        if not self.source and self.read_to < self.world.postgres.end:
            self.source = self.world.postgres.stream(self.read_to, self.world.chance)
            self.read_to = self.world.postgres.end

    def _send_one(self) -> bool:
        """A step of sending; each frame, a part of a message too, waits for credit."""
        assert self.source is not None
        if not self.sender.has_credit:
            return False
        data = next(self.adding, None)
        if data is None and self.source:
            self.adding = self.sender.add(*self.source.popleft())
            return True
        if data is None:
            data = next(self.sender.flush(), None)
        if data is not None:
            self.world.broadcast(data)
        return data is not None

    def _ping(self, data: bytes) -> None:
        self.pinged_at = self.world.now
        self.world.broadcast(data)

    def tell(self) -> None:
        """Tell PostgreSQL what is confirmed."""
        self.world.told(self.sender.confirmed_lsn)

    def on_control(self, message: Control) -> None:
        if self.sender.on_control(message, self.world.now) is Action.OPEN:
            self.reopen = True


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.clock_ns = 1_000_000
        self.postgres = Postgres()
        self.jetstream = JetStream()
        self.archive = Archive(self.postgres.confirmed)
        # Whether PostgreSQL forgets what the archive lacks; and then, whether nobody starts a dead
        # archiver again.
        self.optional = seed % 2 == 1
        self.abandoned = self.optional and seed % 8 == 1
        self.away_rounds = 150 if self.optional and seed % 8 == 3 else 0
        self.controls: deque[Control] = deque()
        self.lines: list[deque[Sent]] = []
        self.frames: dict[str, deque[bytes]] = {PUBLISHER: deque(), ARCHIVER: deque()}
        # The part that is slow in all of this history, if any.
        self.slow = self.chance.randrange(16)
        self.checked = 0
        self.zombie: Publisher | None = None
        self.zombie_frames: deque[bytes] = deque()
        self.reader = Reader(self, self.clock_ns)
        self.publisher = Publisher(self)
        self.archiver = Archiver(self)

    def broadcast(self, data: bytes) -> None:
        for queue in self.frames.values():
            queue.append(data)
        if self.zombie is not None:
            self.zombie_frames.append(data)

    def told(self, lsn: int) -> None:
        """PostgreSQL hears that everything before `lsn` is durable."""
        if lsn <= self.postgres.confirmed:
            return
        needed = self.postgres.changes(before=lsn)
        stored = {change for change in self.jetstream.stored if change is not None}
        archived = stored if self.optional else set(self.archive.changes)
        if not stored.issuperset(needed) or not archived.issuperset(needed):
            raise BrokenPromiseError(
                f"PostgreSQL got {lsn}, while something before it is not durable"
            )
        self.postgres.confirmed = lsn

    def check_stream(self) -> None:
        if len(self.jetstream.stored) == self.checked:
            return
        self.checked = len(self.jetstream.stored)
        own = [change for change in self.jetstream.stored if change is not None]
        if own != self.postgres.changes()[: len(own)]:
            raise BrokenPromiseError(f"the stream is not what was committed: {own}")

    def check_archive(self) -> None:
        """It contains the committed changes, in order, and reports those that it lacks."""
        told = {
            change for gap in self.archive.gaps for change in self.postgres.changes(before=gap[1])
        }
        told -= {
            change for gap in self.archive.gaps for change in self.postgres.changes(before=gap[0])
        }
        held = self.archive.changes
        due = [
            change
            for change in self.postgres.changes()
            if change not in told or change in set(held)
        ]
        if held != due[: len(held)]:
            raise BrokenPromiseError(
                f"the archive is not what was committed: {held}, without {sorted(told)}"
            )
        if self.archive.gaps and not self.optional:
            raise BrokenPromiseError(f"a required archive has gaps: {self.archive.gaps}")

    def deliver(self, queue: deque[bytes], confirmer: Confirmer) -> None:
        blocked = isinstance(confirmer, Publisher) and (confirmer.full or confirmer.doubt)
        if queue and not blocked:
            confirmer.on_frame(queue.popleft())

    def deliver_control(self) -> None:
        if self.controls:
            self.reader.on_control(self.controls.popleft())

    def serve(self) -> None:
        """JetStream takes a message of whichever connection it reads first; a dead publisher's may
        still be there.
        """
        lines = [line for line in self.lines if line]
        if lines:
            self.jetstream.take(self.chance.choice(lines).popleft())

    def step_publisher(self) -> None:
        if self.publisher.doubt:
            self.publisher = self.publisher.again()
            self.frames[PUBLISHER].clear()
        self.publisher.step()

    def step_zombie(self) -> None:
        if self.zombie is not None:
            self.deliver(self.zombie_frames, self.zombie)
            self.zombie.step()

    # What goes wrong.

    def harm_queue(self, queue: deque[Any]) -> None:
        if not queue:
            return
        how, at = self.chance.random(), self.chance.randrange(len(queue))
        if how < 0.4:
            del queue[at]
        elif how < 0.7:
            queue.insert(self.chance.randrange(len(queue) + 1), queue[at])
        elif how < 0.95:
            data = queue[at]
            del queue[at]
            queue.insert(self.chance.randrange(len(queue) + 1), data)
        else:
            queue.clear()

    def crash_reader(self) -> None:
        # A machine whose clock is behind, or went back.
        self.clock_ns += self.chance.choice((1000, 1000, -5000, 0))
        self.reader = Reader(self, self.clock_ns)

    def crash_publisher(self) -> None:
        if self.zombie is None and self.chance.random() < 0.4:
            # It lost its lease while it slept, and wakes up next to its successor.
            self.zombie, self.zombie_frames = self.publisher, self.frames[PUBLISHER]
            self.frames[PUBLISHER] = deque()
        elif self.chance.random() < 0.5:
            # Else the server still reads what the dead one sent, and its heir meets it.
            self.publisher.line.clear()
        self.frames[PUBLISHER].clear()
        self.publisher = Publisher(self)

    def crash_archiver(self) -> None:
        self.frames[ARCHIVER].clear()
        self.archiver = Archiver(self)

    def restart_jetstream(self) -> None:
        """Connections break: what was on its way is gone, and so are the answers."""
        for line in self.lines:
            line.clear()
        self.controls.clear()
        for queue in (*self.frames.values(), self.zombie_frames):
            queue.clear()
        if self.chance.random() < 0.5:
            self.jetstream.lose_tail(self.chance)
        self.publisher.doubt = True
        self.zombie = None

    def harm(self) -> None:
        how = self.chance.random()
        if how < 0.35:
            self.harm_queue(self.frames[self.chance.choice((PUBLISHER, ARCHIVER))])
        elif how < 0.6:
            self.harm_queue(self.controls)
        elif how < 0.7:
            self.crash_reader()
        elif how < 0.8:
            self.crash_publisher()
        elif how < 0.85:
            self.crash_archiver()
        elif how < 0.9:
            self.reader.disconnect()
        elif how < 0.95:
            self.jetstream.stored.append(None)
        else:
            self.restart_jetstream()

    def turn(self) -> None:
        """One thing that happens in a sound world."""
        which = self.chance.randrange(11)
        if which == self.slow and self.chance.random() < 0.9:
            return
        if which == 0:
            self.postgres.commit(self.chance)
        elif which in (1, 2):
            self.reader.step()
        elif which == 3:
            self.reader.tell()
        elif which in (4, 5):
            self.deliver(self.frames[PUBLISHER], self.publisher)
        elif which == 6:
            self.deliver(self.frames[ARCHIVER], self.archiver)
        elif which == 7:
            self.deliver_control()
        elif which == 8:
            self.serve()
        elif which == 9:
            self.step_publisher()
            self.step_zombie()
        else:
            self.archiver.step()

    def live(self, steps: int, harm: float) -> None:
        for _ in range(steps):
            self.now += self.chance.choice((0.0, 0.05, 0.3))
            if self.chance.random() < harm:
                self.harm()
            self.turn()
            self.check_stream()
        self.check_archive()

    def restore(self) -> None:
        """Without faults, everything that was committed arrives and is confirmed."""
        self.zombie = None
        for number in range(HEAL_ROUNDS):
            self.now += 0.1
            away = self.abandoned or number < self.away_rounds
            if number < self.away_rounds and number % 10 == 0:
                self.postgres.commit(self.chance)
            self._round(away=away)
            if self.done() and number >= self.away_rounds:
                self.check_archive()
                return
        raise BrokenPromiseError("without faults, the line stands still")

    def _round(self, *, away: bool) -> None:
        """Everybody does what is due; an archiver that is away hears nothing."""
        self.reader.step()
        for _ in range(8):
            self.deliver(self.frames[PUBLISHER], self.publisher)
            if not away:
                self.deliver(self.frames[ARCHIVER], self.archiver)
            self.deliver_control()
            self.serve()
            self.publisher.hear()
        self.step_publisher()
        if away:
            self.frames[ARCHIVER].clear()
        else:
            self.archiver.step()
        self.reader.tell()

    def done(self) -> bool:
        if self.postgres.confirmed < self.postgres.end or not self.reader.sender.open:
            return False
        own = [change for change in self.jetstream.stored if change is not None]
        whole = self.abandoned or self.archive.held_lsn >= self.postgres.end
        return own == self.postgres.changes() and self.reader.sender.settled and whole
