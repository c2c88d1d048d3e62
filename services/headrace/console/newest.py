"""The newest messages of a subject whose messages are few, wherever they are in a stream.

JetStream finds the next message of a subject and never the one before, so the subject is read once
from its beginning, and then only what is new. Promises: the newest ones are always among those that
are kept; what retention has removed is not.
"""

from __future__ import annotations

import asyncio
from collections import deque

from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError

from headrace.console.reading import EventReader


class Newest:
    """The last `kept_max` messages of a subject."""

    def __init__(self, reader: EventReader, stream: str, subject: str, kept_max: int) -> None:
        self._reader = reader
        self._stream = stream
        self._subject = subject
        self._kept: deque[RawStreamMsg] = deque(maxlen=kept_max)
        self._seq = 0
        # Two readings at a time would keep each message twice.
        self._turn = asyncio.Lock()

    async def read(self) -> list[RawStreamMsg]:
        """The oldest first. A reading that is interrupted continues where it was."""
        async with self._turn:
            return await self._read()

    async def _read(self) -> list[RawStreamMsg]:
        js = self._reader.client.jetstream()
        state = (await js.stream_info(self._stream)).state
        # A stream that was created again begins with 1.
        if int(state.last_seq) < self._seq:
            self._kept.clear()
            self._seq = 0
        while True:
            try:
                message = await js.get_msg(
                    self._stream, self._seq + 1, subject=self._subject, next=True
                )
            except NotFoundError:
                break
            self._seq = int(message.seq or 0)
            self._kept.append(message)
        return [one for one in self._kept if int(one.seq or 0) >= int(state.first_seq)]
