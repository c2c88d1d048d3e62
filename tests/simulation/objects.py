"""An object store in memory, in place of `headrace.archive.store.Store`, whose operations can fail.

Each operation may be refused, take longer than its client waits, be done without an answer, or be
done after its client has given up. Its client is a thread of a simulated process: what a killed or
sleeping process has sent still arrives (`VirtualLoop.run_in_executor`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.archive import layout
from headrace.archive.errors import ArchiveUnreachableError, FileTakenError
from headrace.archive.store import Fetched, Get, Names, ObjectMetadata, Request

if TYPE_CHECKING:
    from tests.simulation.server import Server

_WHEN = datetime(2026, 9, 19, tzinfo=UTC)
# The faults of an operation.
_TROUBLES = ("refused", "unanswered", "hangs", "late")


class Objects:
    """One archive, as its store has it."""

    def __init__(self, server: Server, chance: random.Random) -> None:
        self._server = server
        self.chance = chance
        self.kept: dict[str, bytes] = {}
        # The share of operations that something happens to.
        self.trouble = 0.0
        # Gets every object that is created.
        self.on_put: Callable[[str, bytes], None] = lambda *_: None

    def create(self, name: str, data: bytes) -> bool:
        """Whether the object didn't exist."""
        if name in self.kept:
            return False
        self.kept[name] = data
        self.on_put(name, data)
        return True

    def create_late(self, name: str, data: bytes) -> None:
        """A request that its client has given up still arrives."""
        after = self.chance.choice((0.01, 0.3, 3.0))
        self._server.at(self._server.loop.now + after, self._arrived, (name, data))

    def _arrived(self, message: tuple[str, bytes]) -> None:
        self.create(*message)

    def takes(self, seconds: float) -> None:
        """The answer comes this much later."""
        self._server.loop.answer_after_s += seconds


class SimStore:
    """The part of `Store` that the archiver calls."""

    tells_tail = True

    def __init__(
        self,
        objects: Objects,
        url: str,
        options: Mapping[str, str] | None = None,  # noqa: ARG002  # as there
        timeout_s: float = 30.0,
    ) -> None:
        self.url = url
        self._objects = objects
        self._timeout_s = timeout_s

    def _trouble(self) -> str:
        """This operation's fault, or none; takes its time."""
        objects, chance = self._objects, self._objects.chance
        objects.takes(chance.choice((0.001, 0.001, 0.005, 0.02, 0.2)))
        if chance.random() >= objects.trouble:
            return ""
        trouble = chance.choice(_TROUBLES)
        if trouble != "refused":
            objects.takes(self._timeout_s)
        return trouble

    def ask(self, request: Request) -> Any:
        if self._trouble():
            raise ArchiveUnreachableError(f"{request} failed")
        kept = self._objects.kept
        match request:
            case Names(after, limit):
                return [_metadata(name, kept[name]) for name in sorted(kept) if name > after][
                    :limit
                ]
            case Get(name, size):
                data = kept.get(name)
                if data is None:
                    return None
                return Fetched(_metadata(name, data), data[-size:] if size else data)
        raise NotImplementedError(request)

    def put_new(self, name: str, data: bytes) -> None:
        trouble = self._trouble()
        if trouble == "late":
            self._objects.create_late(name, data)
        elif trouble == "unanswered":
            self._objects.create(name, data)
        if trouble:
            raise ArchiveUnreachableError(f"{name} can't be written: {trouble}")
        if not self._objects.create(name, data):
            raise FileTakenError(f"{name} was written by another process")

    def prepare(self) -> None:
        """The store honours conditions: what the real one finds out with this object."""
        try:
            self.put_new(layout.ONCE, b"made once\n")
        except FileTakenError:
            return


def _metadata(name: str, data: bytes) -> ObjectMetadata:
    return ObjectMetadata(name, len(data), _WHEN)
