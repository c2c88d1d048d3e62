"""The confirmers of the bus's world: a publisher, an archiver, and what the archiver writes into.

Each follows its service in miniature, around the real `FrameReceiver` and `Ledger`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headrace.bus.control import Control
from headrace.bus.frame import Opening
from headrace.bus.receiver import FrameReceiver
from headrace.publisher.ledger import Ledger
from tests.property.bus.bus_durable import MESSAGE, ChangeId, Sent

if TYPE_CHECKING:
    from tests.property.bus.bus_world import World

WINDOW = 6
PUBLISHER, ARCHIVER = "publisher", "archiver"


class Confirmer:
    """The common part of both confirmers: a receiver, and the order in which entries become marks."""

    name = ""

    def __init__(self, world: World) -> None:
        self.world = world
        self.receiver = FrameReceiver(self.name, self.session())
        self.inside = False
        self.send(self.receiver.join())

    def session(self) -> str:
        return f"{self.name}-{self.world.chance.getrandbits(40)}"

    def send(self, message: Control) -> None:
        self.world.controls.append(message)

    def on_frame(self, data: bytes) -> None:
        received = self.receiver.receive(data, self.world.now)
        if received.reply is not None:
            self.send(received.reply)
        if received.opening is not None:
            self.inside = False
            self.begin(received.opening)
        for lsn, message in received.entries:
            self._entry(lsn, message)
        if received.entries or received.confirm:
            self.confirm()

    def _entry(self, lsn: int, message: bytes) -> None:
        if not message:
            if not self.inside:
                self.mark(lsn)
            return
        kind, number, seq = MESSAGE.unpack_from(message)
        if kind == b"c":
            assert self.inside
            self.change((number, seq))
        else:
            assert self.inside is (kind == b"C")
            self.inside = kind == b"B"
            if kind == b"C":
                self.mark(self.world.postgres.transactions[number].end)

    def tick(self) -> None:
        join = self.receiver.tick(self.world.now)
        if join is not None:
            self.send(join)

    def begin(self, opening: Opening) -> None: ...

    def change(self, change: ChangeId) -> None: ...

    def mark(self, lsn: int) -> None: ...

    def confirm(self) -> None:
        if self.receiver.following:
            self.send(self.receiver.confirm(settled=self.settled))

    @property
    def settled(self) -> bool:
        return True

    def step(self) -> None:
        self.tick()


class Archive:
    """The content of the object store: changes in order, and the gaps between them; written only
    by conditional puts.
    """

    def __init__(self, begins_lsn: int) -> None:
        self.changes: list[ChangeId] = []
        self.gaps: list[tuple[int, int]] = []
        self.files = 0
        self.held_lsn = begins_lsn

    @property
    def last(self) -> ChangeId:
        return self.changes[-1] if self.changes else (-1, -1)

    def put(
        self, file_id: int, changes: list[ChangeId], lsn: int, gap: tuple[int, int] | None = None
    ) -> bool:
        if file_id != self.files + 1:
            return False
        self.files = file_id
        self.changes += changes
        self.gaps += [gap] if gap else []
        self.held_lsn = max(self.held_lsn, lsn)
        return True


class Archiver(Confirmer):
    """Keeps what it hears in memory, and writes it out from time to time; its place is what the
    archive says.
    """

    name = ARCHIVER

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.memory: list[ChangeId] = []
        self.heard = 0
        self._find_place()

    def _find_place(self) -> None:
        archive = self.world.archive
        self.memory, self.heard, self.last, self.files = [], 0, archive.last, archive.files
        self.held = archive.held_lsn

    def begin(self, opening: Opening) -> None:
        self._find_place()
        if opening.confirmed_lsn > self.held:
            gap = (self.held, opening.confirmed_lsn)
            self.written(self.world.archive.put(self.files + 1, [], opening.confirmed_lsn, gap))
            self.held = opening.confirmed_lsn

    def written(self, done: bool) -> None:
        """A put that was refused means that another archiver continues: find the place again."""
        if done:
            self.files += 1
        else:
            self.send(self.receiver.restart("the archiver finds its place again"))

    def change(self, change: ChangeId) -> None:
        if change > self.last:
            self.last = change
            self.memory.append(change)

    def mark(self, lsn: int) -> None:
        self.heard = max(self.heard, lsn)

    @property
    def settled(self) -> bool:
        return self.receiver.confirmed_lsn >= self.heard

    def step(self) -> None:
        self.tick()
        if self.receiver.following and self.memory:
            self.written(self.world.archive.put(self.files + 1, self.memory, self.heard))
            self.memory = []
        if self.receiver.following:
            # With nothing in memory, what the log had meanwhile is nobody's change.
            self.world.archive.held_lsn = max(self.world.archive.held_lsn, self.heard)
            self.receiver.confirmed_lsn = max(self.receiver.confirmed_lsn, self.heard)
            self.confirm()


class Publisher(Confirmer):
    """Publishes in a chain behind the stream's tail; any doubt begins a new follower in the same
    session.
    """

    name = PUBLISHER

    def __init__(self, world: World, own_session: str | None = None) -> None:
        self._session = own_session
        self.line: deque[Sent] = deque()
        self.waiting: deque[tuple[int, bytes]] = deque()
        super().__init__(world)
        self._session = self.receiver._session
        self.ledger = Ledger()
        self.position = world.jetstream.place()
        self.answers: deque[tuple[int, bool]] = deque()
        self.expected = len(world.jetstream.stored)
        self.last: ChangeId | None = None
        self.acked = self.published = 0
        self.published_ids: list[ChangeId] = []
        self.doubt = False
        world.lines.append(self.line)

    def session(self) -> str:
        return self._session or super().session()

    def begin(self, opening: Opening) -> None:  # noqa: ARG002  # only the archiver's
        self.ledger = Ledger()

    def change(self, change: ChangeId) -> None:
        if change <= self.position:
            return
        self.position = change
        head = self.published == 0
        after_seq = self.expected if head else None
        self.line.append(
            Sent(change, None if head else self.last, after_seq, self.answers, self.published)
        )
        self.last = change
        self.published += 1
        self.published_ids.append(change)

    def mark(self, lsn: int) -> None:
        self.ledger.mark(lsn, self.published, whole=True)

    @property
    def settled(self) -> bool:
        return not self.ledger.waiting

    @property
    def full(self) -> bool:
        return self.published - self.acked >= WINDOW

    def hear(self) -> None:
        """Take the next answer of the server."""
        if self.answers:
            index, fits = self.answers.popleft()
            if fits and index == self.acked:
                self.acked += 1
            else:
                self.doubt = True

    def step(self) -> None:
        self.hear()
        self.tick()
        if not self.doubt:
            self.write_progress()
            self.confirm()

    def write_progress(self) -> None:
        lsn = self.ledger.confirmable(self.acked)
        jetstream = self.world.jetstream
        if self.acked:
            stored = self.published_ids[self.acked - 1]
            if stored > jetstream.progress:
                jetstream.progress, jetstream.progress_seq = (
                    stored,
                    jetstream.stored.index(stored) + 1,
                )
        elif self.position > jetstream.progress and not self.published:
            jetstream.progress = self.position
            jetstream.progress_seq = jetstream.stored.index(self.position) + 1
        self.receiver.confirmed_lsn = max(self.receiver.confirmed_lsn, lsn)

    def again(self) -> Publisher:
        """The next follower of the same process. The messages of this one are still on their way."""
        self.send(self.receiver.restart("the publisher finds its place again"))
        return Publisher(self.world, self.receiver._session)
