"""Messages of chosen subscriptions as raw bytes, in batches of one socket read each.

nats-py takes about 25 µs to create an object for each message and to queue it; a client that
follows a stream needs none of that. A subscription created here receives tuples of bytes, split off
before nats-py's parser sees them. Everything else on the connection is left to that parser, one
whole command at a time, so that the parser serves as the oracle of the test. Together with `wire`,
the only place that touches nats-py's internals.

Promises: the messages of a subscription in the order in which the server sent them, none twice,
none missing while the connection lasts; nothing from a broken connection is mistaken for a part of
the next one. Nothing here waits, so listeners have to bound what may arrive (by the requests of a
pull).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import ProtocolError
from nats.js import JetStreamContext
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

_CRLF = b"\r\n"
# Commands that deliver a message, and their number of words with a reply subject.
_MESSAGES = {b"MSG": 5, b"HMSG": 6}


# A raw message: subject, reply, header (including NATS/1.0; empty if there is none), payload. A
# plain tuple: naming its fields would cost as much as finding them.
Arrival = tuple[bytes, bytes, bytes, bytes]
# Called with the messages of one read; must neither raise nor wait.
Listener = Callable[[list[Arrival]], None]


@dataclass(frozen=True, slots=True)
class Listening:
    """A subscription whose messages go to a listener."""

    _client: Client
    _subscription: Subscription

    async def end(self) -> None:
        """Stop listening now; unsubscribe if the server is connected."""
        # Before unsubscribing, which waits: messages that arrive meanwhile would still reach the
        # listener.
        _parser(self._client).listeners.pop(_sid(self._subscription), None)
        if not self._client.is_closed and not self._client.is_draining:
            await self._subscription.unsubscribe()


async def listen(client: Client, subject: str, listener: Listener) -> Listening:
    """Subscribe; from now on, and across reconnects, the listener receives the messages."""
    # nats-py repeats its subscriptions after a reconnect, with the same id: the listener keeps
    # working.
    subscription = await client.subscribe(subject)
    _parser(client).listeners[_sid(subscription)] = listener
    return Listening(client, subscription)


def connection_of(js: JetStreamContext) -> Client:
    """The connection that a JetStream context uses."""
    return js._nc  # noqa: SLF001  # the public object doesn't tell it


def _sid(subscription: Subscription) -> bytes:
    # The public object doesn't tell what the wire calls it.
    return b"%d" % subscription._id  # noqa: SLF001


def _parser(client: Client) -> BulkParser:
    parser = client._ps  # noqa: SLF001  # there is no public way to see bytes
    if not isinstance(parser, BulkParser):
        parser = BulkParser(client, parser)
        client._ps = parser  # noqa: SLF001  # as above
    return parser


class BulkParser(Parser):
    """Replaces nats-py's parser, and passes on to it everything but some subscriptions."""

    def __init__(self, client: Client, before: Parser) -> None:
        # By subscription id: these messages never reach nats-py.
        self.listeners: dict[bytes, Listener] = {}
        # The number of connections so far: `_parse` compares it to notice that a command it passed
        # on has ended the connection.
        self._life = 0
        # The pieces of a command that has not arrived completely, and the size at which parsing it
        # is worth another try.
        self._pieces: list[bytes] = []
        self._held = 0
        self._wanted = 0
        # Calls `reset`, which must find everything above.
        super().__init__(client)
        # nats-py's own parser, until the next bytes arrive: it may be in the middle of a message.
        self._before: Parser | None = before

    def reset(self) -> None:
        """A new connection: nothing of the old one is left."""
        super().reset()
        # The unused bytes of the old connection must not be joined to the first ones of the next.
        self._before = None
        self._life += 1
        self._pieces = []
        self._held = 0
        self._wanted = 0

    async def parse(self, data: bytes = b"") -> None:
        """Bytes that the connection has read."""
        # The previous parser may have stopped in the middle of a command; its bytes come first.
        if self._before is not None:
            data = self._take_over(self._before) + data
        if self.state != AWAITING_CONTROL_LINE:
            # The rest of a message that the previous parser had started.
            rest = self.needed + len(_CRLF) - len(self.buf)
            data, begun = data[rest:], data[:rest]
            await super().parse(begun)
        # A large message arrives in many reads. Joining and scanning them for each read would take
        # quadratic time, so nothing is parsed until enough bytes have arrived for the command to be
        # complete.
        self._pieces.append(data)
        self._held += len(data)
        if self._held < self._wanted:
            return
        if len(self._pieces) > 1:
            data = b"".join(self._pieces)
        self._pieces = []
        self._held = 0
        self._wanted = 0
        try:
            await self._parse(data)
        except (ValueError, IndexError) as error:
            # nats-py reconnects after a ProtocolError; any other error would end its reading task
            # silently.
            raise ProtocolError("nats: malformed MSG") from error

    def _take_over(self, before: Parser) -> bytes:
        """Its state and its unused bytes; it is never called again."""
        self._before = None
        self.state = before.state
        self.needed = before.needed
        self.header_needed = before.header_needed
        self.msg_arg = before.msg_arg
        if self.state == AWAITING_CONTROL_LINE:
            return bytes(before.buf)
        self.buf = before.buf
        return b""

    async def _parse(self, data: bytes) -> None:
        """Hand on every command that is whole, and keep the rest."""
        at = 0
        life = self._life
        while at < len(data):
            at = self._hear(data, at)
            if at == len(data):
                return
            # One whole command at a time: nats-py's parser then never keeps a part, so its state
            # stays clean.
            end = _end(data, at)
            if end > len(data):
                self._pieces = [data[at:]]
                self._held = len(data) - at
                self._wanted = end - at
                return
            await super().parse(data[at:end])
            if self._life != life:
                # It ended the connection; the bytes that follow are useless, and no part of the
                # next one.
                return
            at = end

    def _hear(self, data: bytes, at: int) -> int:
        """Pass all messages for the listeners on, up to a command that isn't theirs or is
        incomplete; returns its offset.
        """
        listeners = self.listeners
        find = data.find
        size = len(data)
        heard: list[Arrival] = []
        of = b""
        while (line := find(_CRLF, at)) >= 0:
            words = data[at:line].split()
            # MSG <subject> <sid> [reply] <size>, and HMSG <subject> <sid> [reply] <header size>
            # <size>.
            if len(words) < 4 or words[2] not in listeners or words[0] not in _MESSAGES:
                break
            begin = line + 2
            end = begin + int(words[-1])
            # The message is incomplete; its CRLF counts too.
            if end + 2 > size:
                break
            # Messages are passed on in the order of the connection, so a change of subscription
            # ends a batch.
            if words[2] != of:
                self._give(of, heard)
                heard = []
                of = words[2]
            cut = begin + int(words[-2]) if words[0] == b"HMSG" else begin
            reply = words[3] if len(words) == _MESSAGES[words[0]] else b""
            heard.append((words[1], reply, data[begin:cut], data[cut:end]))
            at = end + 2
        self._give(of, heard)
        return at

    def _give(self, sid: bytes, heard: list[Arrival]) -> None:
        if heard:
            # nats-py's own figures would otherwise not include these messages.
            self.nc.stats["in_msgs"] += len(heard)
            self.nc.stats["in_bytes"] += sum([len(payload) for *_, payload in heard])
            self.listeners[sid](heard)


def _end(data: bytes, at: int) -> int:
    """The end of the command that starts here; beyond the data if it is incomplete."""
    line = data.find(_CRLF, at)
    if line < 0:
        return len(data) + 1
    words = data[at:line].split()
    body = int(words[-1]) + len(_CRLF) if words and words[0] in _MESSAGES else 0
    return line + len(_CRLF) + body
