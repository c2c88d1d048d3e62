"""What a pull has asked for and what lies here unread, so that neither grows beyond its bound.
Pure.

Owns the arithmetic of requests and the words of the server's answers that are no messages. Promises
that what is asked for and what is held are together never more than the bounds, but for one message
larger than they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import DecodeError

# With a domain in it there are more.
_TOKENS = 9


def place(reply: bytes) -> tuple[int, int, bytes]:
    """Where a message stands: in the stream, among all that its consumer was given, and when it was
    stored (ns).
    """
    words = reply.split(b".")
    at = 5 if len(words) == _TOKENS else 7
    try:
        return int(words[at]), int(words[at + 1]), words[at + 2]
    except (ValueError, IndexError) as error:
        raise DecodeError("a message that names no place in its stream") from error


@dataclass(frozen=True, slots=True)
class Status:
    """An answer of the server that is no message."""

    code: int
    text: str
    # What of its request will not come any more; None where the server does not say.
    pending: tuple[int, int] | None = None
    # How many messages the consumer has given so far, as a heartbeat tells.
    given: int | None = None

    @property
    def is_heartbeat(self) -> bool:
        return self.code == 100

    @property
    def is_too_small(self) -> bool:
        """Whether the next message is larger than what was asked for."""
        return "MaxBytes" in self.text

    @property
    def ends_request(self) -> bool:
        """Whether its request is over, and nothing else is amiss."""
        return self.pending is not None and self.code in {404, 408, 409}

    def __str__(self) -> str:
        return f"{self.code} {self.text}".strip()


def status(header: bytes) -> Status | None:
    """What a header says that is not a message's."""
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
    """Room for so many messages and bytes, asked for or held."""

    messages_max: int
    bytes_max: int
    asked: int = 0
    asked_bytes: int = 0
    held: int = 0
    held_bytes: int = 0
    # Of what was asked for last nothing has come: ended like that, its first message is larger than
    # it may be.
    _nothing_came: bool = True
    _one_of_any_size: bool = False
    _is_alone: bool = False

    def ask(self) -> tuple[int, int] | None:
        """What to ask for now, in messages and bytes (0: of any size); None while half of the room
        is taken.
        """
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
        if 2 * messages < self.messages_max or 2 * size < self.bytes_max:
            return None
        self.asked += messages
        self.asked_bytes += size
        self._nothing_came = True
        return messages, size

    def arrived(self, messages: int, size: int) -> None:
        """These came, of whichever request."""
        self._nothing_came = self._nothing_came and not messages
        self._less(messages, size)

    def hold(self, messages: int, size: int) -> None:
        """These wait to be read."""
        self.held += messages
        self.held_bytes += size

    def read(self, messages: int, size: int) -> None:
        """These are no longer here."""
        self.held -= messages
        self.held_bytes -= size

    def ended(self, messages: int, size: int, *, too_small: bool = False) -> None:
        """So much of a request will not come; `too_small` for what comes next."""
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
        self.asked = max(0, self.asked - messages)
        # Bytes are promised with messages: where none is to come, neither are they.
        if self.asked:
            self.asked_bytes = max(0, self.asked_bytes - size)
        else:
            self.asked_bytes = 0
