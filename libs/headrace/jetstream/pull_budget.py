"""The limits on what a pull has requested and what it holds unread. Pure.

Owns the arithmetic of requests, and parses the server's answers that are not messages. Promises
that requested and held messages together never exceed the limits, except for a single message
larger than they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import DecodeError

# With a domain in it there are more.
_TOKENS = 9


def place(reply: bytes) -> tuple[int, int, bytes]:
    """A message's position: its sequences in the stream and in its consumer, and when it was stored
    (ns).
    """
    words = reply.split(b".")
    at = 5 if len(words) == _TOKENS else 7
    try:
        return int(words[at]), int(words[at + 1]), words[at + 2]
    except (ValueError, IndexError) as error:
        raise DecodeError("a message without a position in its stream") from error


@dataclass(frozen=True, slots=True)
class Status:
    """An answer of the server that is not a message."""

    code: int
    text: str
    # The rest of its request that will not be delivered; None if the server doesn't say.
    pending: tuple[int, int] | None = None
    # The number of messages the consumer has delivered so far, according to a heartbeat.
    given: int | None = None

    @property
    def is_heartbeat(self) -> bool:
        return self.code == 100

    @property
    def is_too_small(self) -> bool:
        """Whether the next message is larger than what was requested."""
        return "MaxBytes" in self.text

    @property
    def ends_request(self) -> bool:
        """Whether its request is over, and nothing else is wrong."""
        return self.pending is not None and self.code in {404, 408, 409}

    def __str__(self) -> str:
        return f"{self.code} {self.text}".strip()


def status(header: bytes) -> Status | None:
    """What a status header says."""
    if header[:9] != b"NATS/1.0 ":
        return None
    first, *lines = header[9:].decode(errors="replace").split("\r\n")
    code, _, text = first.strip().partition(" ")
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def count(name: str) -> int | None:
        value = fields.get(name, "")
        if value.isdigit():
            return int(value)
        return None

    messages = count("Nats-Pending-Messages")
    size = count("Nats-Pending-Bytes")
    if messages is None or size is None:
        pending = None
    else:
        pending = (messages, size)
    return Status(
        int(code) if code.isdigit() else 0, text.strip(), pending, count("Nats-Last-Consumer")
    )


@dataclass(slots=True)
class Room:
    """Limits on messages and bytes, requested or held."""

    messages_max: int
    bytes_max: int
    asked: int = 0
    asked_bytes: int = 0
    held: int = 0
    held_bytes: int = 0
    # Nothing has arrived of the last request: if it ends like that, its first message is too large
    # for it.
    _nothing_came: bool = True
    # The next request must be for a single message without a limit in bytes; such a request is
    # running.
    _one_of_any_size: bool = False
    _is_alone: bool = False

    def ask(self) -> tuple[int, int] | None:
        """What to request now, in messages and bytes (0: any size); None while half of the limit is
        in use.
        """
        # Only once nothing else is requested or held: its size is unknown, and it must not share
        # the memory.
        if self._one_of_any_size:
            if self.asked or self.held:
                return None
            self._one_of_any_size = False
            self._is_alone = True
            self.asked = 1
            return 1, 0
        if self._is_alone and (self.asked or self.held):
            return None
        self._is_alone = False
        messages = self.messages_max - self.asked - self.held
        size = self.bytes_max - self.asked_bytes - self.held_bytes
        # One request for half of the limit instead of one for each message read.
        if 2 * messages < self.messages_max or 2 * size < self.bytes_max:
            return None
        self.asked += messages
        self.asked_bytes += size
        self._nothing_came = True
        return messages, size

    def arrived(self, messages: int, size: int) -> None:
        """These arrived, for whichever request."""
        self._nothing_came = self._nothing_came and not messages
        self._less(messages, size)

    def hold(self, messages: int, size: int) -> None:
        """These wait to be read."""
        self.held += messages
        self.held_bytes += size

    def read(self, messages: int, size: int) -> None:
        """These were read."""
        self.held -= messages
        self.held_bytes -= size

    def ended(self, messages: int, size: int, *, too_small: bool = False) -> None:
        """This part of a request will not be delivered; `too_small` for the next message."""
        self._less(messages, size)
        if too_small and not self.asked and self._nothing_came:
            self._one_of_any_size = True

    def forget(self) -> None:
        """Nothing that was asked for will come."""
        self.asked = 0
        self.asked_bytes = 0
        self._one_of_any_size = False
        self._is_alone = False

    def _less(self, messages: int, size: int) -> None:
        # A request's end and its last messages may be counted in either order.
        self.asked = max(0, self.asked - messages)
        # Bytes are promised with messages: without outstanding messages, no bytes are outstanding.
        self.asked_bytes = max(0, self.asked_bytes - size) if self.asked else 0
