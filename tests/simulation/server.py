"""nats-server for the simulation: connections with a latency each way, subjects, JetStream's API.

A message takes its time on each connection, in order. Publishing into a stream and asking about it
take their own time in the server, as there: an answer to a question may be older than a message that
was sent before the question.
"""

from __future__ import annotations

import base64
import itertools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson

from tests.simulation.batches import FAST, take_atomic, take_fast
from tests.simulation.clockwork import VirtualLoop
from tests.simulation.stream import Answer, Headers, Stored, Stream, refused

if TYPE_CHECKING:
    from tests.simulation.client import SimClient

_API = "$JS.API."
# The share of messages that take long.
HICCUP = 0.02
_NOT_FOUND = refused(404, 10059, "stream not found")
_NO_MESSAGE = refused(404, 10037, "no message found")


class Connection:
    """One connection of a client, from its beginning until it breaks."""

    def __init__(self, server: Server, client: SimClient) -> None:
        self.server = server
        self.client = client
        self.broken = False
        self.subs: dict[int, str] = {}
        self._up = self._down = 0.0

    def send(self, *message: Any) -> None:
        """From the client; it arrives unless the connection breaks first."""
        self._up = max(self._up, self.server.loop.now + self.server.latency())
        self.server.at(self._up, self._arrive, message)

    def _arrive(self, message: tuple[Any, ...]) -> None:
        if not self.broken:
            self.server.receive(self, *message)

    def deliver(
        self, sid: int, subject: str, reply: str, headers: Headers | None, data: bytes
    ) -> None:
        """To a subscription of the client."""
        self._down = max(self._down, self.server.loop.now + self.server.latency())
        self.server.at(self._down, self._hand_over, (sid, subject, reply, headers, data))

    def _hand_over(self, message: tuple[Any, ...]) -> None:
        if self.broken:
            return
        process = self.client.process
        if process is None or not process.asleep:
            self.client.hear(*message)
        elif not process.dead:
            # It stays in the socket until it is read.
            self.server.loop.call_soon(self.client.hear, *message, context=self.client.context)

    def cut(self, kept: float) -> None:
        """Its client died: of what is on its way, what comes before `kept` still arrives."""
        self.server.at(max(kept, self.server.loop.now), self.drop, ())

    def drop(self, *_: Any) -> None:
        self.broken = True
        self.server.connections.pop(self, None)


@dataclass(slots=True)
class _Pull:
    reply: str
    left: int
    expires: float


@dataclass(slots=True)
class Consumer:
    """A pull consumer that acknowledges nothing."""

    stream: Stream
    name: str
    next_seq: int
    given: int = 0
    pulls: list[_Pull] = field(default_factory=list)


class Server:
    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.up = True
        self.streams: dict[str, Stream] = {}
        # In the order in which they began.
        self.connections: dict[Connection, None] = {}
        self.inboxes: dict[str, Connection] = {}
        self.version = "2.15.1"
        # Gets every message that a stream stores.
        self.on_stored: Callable[[Stream, Stored], None] = lambda *_: None
        # Messages that core NATS loses: asked for each one, by its subject.
        self.loses: Callable[[str], bool] = lambda _: False
        self.hiccup = HICCUP
        self._numbers = itertools.count(1)
        self._busy: dict[str, float] = {}
        # The stream of each subject, by its name.
        self._captured: dict[str, str] = {}

    def latency(self) -> float:
        """Mostly a moment, sometimes long."""
        drawn = self.chance.random() - self.hiccup
        if drawn < 0:
            return self.chance.choice((0.02, 0.1, 0.6))
        return 0.0001 + drawn * 0.0006

    def at(self, when: float, call: Callable[..., None], message: Any) -> None:
        """Of nobody's process."""
        self.loop.at(when, call, message)

    def number(self) -> int:
        return next(self._numbers)

    def receive(self, connection: Connection, kind: str, *message: Any) -> None:
        if kind == "pub":
            self.publish(*message)
        elif kind == "sub":
            connection.subs[message[0]] = message[1]
        elif kind == "unsub":
            connection.subs.pop(message[0], None)
        elif kind == "ping":
            connection.deliver(0, message[0], "", None, b"")

    def publish(self, subject: str, reply: str, headers: Headers | None, payload: bytes) -> None:
        if subject.startswith(_API):
            self._busy_with("api", self._ask, (subject.removeprefix(_API), reply, payload))
            return
        stream = self.captures(subject)
        if stream is not None:
            call = (stream, subject, reply, headers or {}, payload)
            self._busy_with(stream.name, self._store, call)
            return
        heard = self.route(subject, reply, headers, payload)
        if not heard and reply:
            self.route(reply, "", {"Status": "503"}, b"")

    def _busy_with(self, what: str, call: Callable[..., None], message: Any) -> None:
        """Each queue of the server is worked off in order, some time later."""
        due = self._busy.get(what, 0.0)
        if self.chance.random() < 0.3:
            due = max(due, self.loop.now + self.latency())
        if due <= self.loop.now:
            call(message)
            return
        self._busy[what] = due
        self.at(due, call, message)

    def captures(self, subject: str) -> Stream | None:
        if subject.startswith(("_INBOX.", "headrace.")):
            return None
        # No two streams have subjects in common.
        known = self.streams.get(self._captured.get(subject, ""))
        if known is not None:
            return known
        for stream in self.streams.values():
            if any(matches(pattern, subject) for pattern in stream.subjects):
                self._captured[subject] = stream.name
                return stream
        return None

    def route(self, subject: str, reply: str, headers: Headers | None, payload: bytes) -> int:
        """Core NATS: to the current subscribers."""
        heard = 0
        for connection in self._listeners(subject):
            for sid, pattern in connection.subs.items():
                if matches(pattern, subject):
                    heard += 1
                    if not self.loses(subject):
                        connection.deliver(sid, subject, reply, headers, payload)
        return heard

    def _listeners(self, subject: str) -> tuple[Connection, ...]:
        """Those that may listen: an inbox is one connection's."""
        if subject.startswith("_INBOX."):
            one = self.inboxes.get(subject.split(".", 2)[1])
            return (one,) if one is not None and not one.broken else ()
        return tuple(self.connections)

    def answer(self, reply: str, answer: Answer | None, headers: Headers | None = None) -> None:
        if reply and answer is not None:
            self.route(reply, "", headers, orjson.dumps(answer))

    def _store(self, message: tuple[Stream, str, str, Headers, bytes]) -> None:
        stream, subject, reply, headers, payload = message
        if not self.up or self.streams.get(stream.name) is not stream:
            return
        before, now = stream.last_seq, self.loop.now
        if "Nats-Batch-Id" in headers:
            self.answer(reply, take_atomic(stream, subject, headers, payload, now))
        elif reply.endswith(FAST):
            for answer in take_fast(stream, subject, reply, headers, payload, now):
                self.answer(reply, answer)
        else:
            self.answer(reply, stream.take(subject, headers, payload, now))
        self.note(stream, before)

    def note(self, stream: Stream, before: int) -> None:
        """Tell of what was stored since then."""
        for seq in range(before + 1, stream.last_seq + 1):
            if seq in stream.messages:
                self.on_stored(stream, stream.messages[seq])
        for consumer in stream.consumers.values():
            self._feed(consumer)

    # JetStream's API.

    def _ask(self, message: tuple[str, str, bytes]) -> None:
        subject, reply, payload = message
        if not self.up:
            return
        words = subject.split(".")
        name = next((one for one in words if one in self.streams), "")
        verb = subject.split(f".{name}", 1)[0] if name else ".".join(words[:2])
        if verb == "STREAM.CREATE":
            self.answer(reply, self._create(orjson.loads(payload)))
        elif not name and verb == "DIRECT.GET":
            # Streams answer these themselves, so nobody does for a missing one.
            self.route(reply, "", {"Status": "503"}, b"")
        elif not name:
            self.answer(reply, _NOT_FOUND)
        elif verb == "STREAM.INFO":
            self.answer(reply, self.streams[name].info())
        elif verb == "STREAM.MSG.DELETE":
            there = self.streams[name].delete(orjson.loads(payload)["seq"])
            self.answer(reply, {"success": True} if there else _NO_MESSAGE)
        elif verb == "STREAM.MSG.GET":
            self.answer(reply, self._message(self.streams[name], orjson.loads(payload)))
        elif verb == "DIRECT.GET":
            self._direct(self.streams[name], subject.split(f".{name}.", 1)[1], reply)
        elif verb.startswith("CONSUMER"):
            self._consumer(verb, self.streams[name], words[-1], reply, payload)

    def _create(self, config: dict[str, Any]) -> Answer:
        name = config["name"]
        if name not in self.streams:
            self.streams[name] = Stream(
                name,
                tuple(config.get("subjects", ())),
                config.get("duplicate_window", 0) / 1e9 or 120.0,
                f"2026-09-19T00:00:00.{self.number():09d}Z",
                config.get("max_msgs_per_subject", -1) or -1,
                bool(config.get("allow_batched")),
                bool(config.get("allow_atomic")),
                max_age=config.get("max_age") or 0,
            )
        return self.streams[name].info()

    def _message(self, stream: Stream, wanted: dict[str, Any]) -> Answer:
        found = stream.messages.get(wanted.get("seq", 0))
        if found is None:
            return _NO_MESSAGE
        body = {
            "subject": found.subject,
            "seq": found.seq,
            "data": base64.b64encode(found.payload).decode(),
            "time": "2026-09-19T00:00:00Z",
        }
        if found.headers:
            body["hdrs"] = base64.b64encode(header_bytes(found.headers)).decode()
        return {"type": "io.nats.jetstream.api.v1.stream_msg_get_response", "message": body}

    def _direct(self, stream: Stream, subject: str, reply: str) -> None:
        found = stream.messages.get(stream.by_subject.get(subject, 0))
        if found is None:
            self.route(reply, "", {"Status": "404", "Description": "Message Not Found"}, b"")
            return
        said = {
            "Nats-Stream": stream.name,
            "Nats-Subject": found.subject,
            "Nats-Sequence": str(found.seq),
            "Nats-Time-Stamp": "2026-09-19T00:00:00Z",
        }
        self.route(reply, "", {**found.headers, **said}, found.payload)

    def last_of(self, stream: str, pattern: str) -> list[Stored] | None:
        """The last message of each subject; None where the server or the stream is away."""
        if not self.up or stream not in self.streams:
            return None
        return list(self.streams[stream].matching(pattern))

    def _consumer(self, verb: str, stream: Stream, name: str, reply: str, payload: bytes) -> None:
        if verb == "CONSUMER.CREATE":
            config = orjson.loads(payload)["config"]
            first, name = config.get("opt_start_seq", 1), config["name"]
            stream.consumers[name] = Consumer(stream, name, max(first, stream.first_seq))
            self.answer(reply, _consumer_info(stream.name, name))
        elif verb == "CONSUMER.DELETE":
            stream.consumers.pop(name, None)
            self.answer(reply, {"success": True})
        elif name in stream.consumers:
            wanted = orjson.loads(payload)
            pull = _Pull(reply, wanted["batch"], self.loop.now + wanted["expires"] / 1e9)
            consumer = stream.consumers[name]
            consumer.pulls.append(pull)
            self.at(pull.expires, self._expire, (consumer, pull))
            self._feed(consumer)

    def _feed(self, consumer: Consumer) -> None:
        stream = consumer.stream
        while consumer.pulls and consumer.next_seq <= stream.last_seq:
            found = stream.messages.get(consumer.next_seq)
            consumer.next_seq += 1
            if found is None:
                continue
            consumer.given += 1
            pull = consumer.pulls[0]
            pull.left -= 1
            place = f"$JS.ACK.{stream.name}.{consumer.name}.1.{found.seq}.{consumer.given}.0.0"
            self.route_pull(pull.reply, found, place)
            if not pull.left:
                consumer.pulls.pop(0)

    def route_pull(self, reply: str, found: Stored, place: str) -> None:
        """A pulled message comes under its own subject, to the subscription of the reply."""
        for connection in self._listeners(reply):
            for sid, pattern in connection.subs.items():
                if matches(pattern, reply):
                    connection.deliver(sid, found.subject, place, found.headers, found.payload)

    def _expire(self, message: tuple[Consumer, _Pull]) -> None:
        consumer, pull = message
        if pull in consumer.pulls and self.up:
            consumer.pulls.remove(pull)
            status = {
                "Status": "408 Request Timeout",
                "Nats-Pending-Messages": str(pull.left),
                "Nats-Pending-Bytes": "0",
            }
            self.route(pull.reply, "", status, b"")

    # What goes wrong.

    def stop(self) -> None:
        """The server ends: every connection breaks."""
        self.up = False
        for connection in tuple(self.connections):
            connection.drop()
            connection.client.lost(connection)

    def start(self) -> None:
        self.up = True
        for stream in self.streams.values():
            stream.restart(self.loop.now)


def header_bytes(headers: Headers) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def _consumer_info(stream: str, name: str) -> Answer:
    return {
        "type": "io.nats.jetstream.api.v1.consumer_create_response",
        "stream_name": stream,
        "name": name,
        "created": "2026-09-19T00:00:00Z",
        "config": {"ack_policy": "none", "deliver_policy": "by_start_sequence"},
        "delivered": {"consumer_seq": 0, "stream_seq": 0},
        "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
        "num_ack_pending": 0,
        "num_redelivered": 0,
        "num_waiting": 0,
        "num_pending": 0,
    }


def matches(pattern: str, subject: str) -> bool:
    """Whether a subscription's subject takes a message's."""
    return pattern == subject or _compiled(pattern)(subject) is not None


@cache
def _compiled(pattern: str) -> Callable[[str], object]:
    wanted = re.escape(pattern).replace(r"\*", "[^.]+").replace(">", ".+")
    return re.compile(wanted).fullmatch
