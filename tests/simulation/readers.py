"""nats-server for readers of a stream: consumers with filters, heartbeats, limits in bytes
and acknowledgements, messages by sequence and subject, and the holes of a stream.

The server of `server` stores; this one adds what mirrors and other consumers need of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.server import Server, header_bytes, matches
from tests.simulation.stream import Answer, Headers, Stored, Stream, refused

_ACK = "$JS.ACK."
_NO_MESSAGE = refused(404, 10037, "no message found")
_NO_CONSUMER = refused(404, 10014, "consumer not found")
_NAME_TAKEN = refused(400, 10148, "consumer already exists")


@dataclass(slots=True)
class Request:
    """A reader's request for messages that is not over yet."""

    reply: str
    left: int
    size_left: int
    expires: float
    heartbeat_s: float


@dataclass(slots=True)
class Reader:
    """A pull consumer."""

    stream: Stream
    name: str
    config: dict[str, Any]
    next_seq: int
    given: int = 0
    acknowledged: int = 0
    # By the reader's own numbers.
    acknowledged_number: int = 0
    requests: list[Request] = field(default_factory=list)

    def wants(self, subject: str) -> bool:
        filters = self.config.get("filter_subjects") or [">"]
        return any(matches(pattern, subject) for pattern in filters)

    def pending(self) -> int:
        rest = (one for seq, one in self.stream.messages.items() if seq >= self.next_seq)
        return sum(self.wants(one.subject) for one in rest)


class ReaderServer(Server):
    """Its readers see each message immediately; `holds_back` keeps a stream's messages from them."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.holds_back = False
        # Whether the readers' server lacks the last messages, and whether holes are listed.
        self.lags = False
        self.lists_holes = True
        # Requests to the API by verb, and every acknowledgement.
        self.asked: list[str] = []
        self.unanswered: set[str] = set()
        # Streams that answer no publisher.
        self.silent: set[str] = set()

    # Storing.

    def put(self, subject: str, payload: bytes, headers: Headers | None = None) -> int:
        """Store a message without a publisher; its sequence."""
        stream = self.captures(subject)
        assert stream is not None, subject
        before = stream.last_seq
        stream.store(subject, headers or {}, payload, self.loop.now)
        self.note(stream, before)
        return stream.last_seq

    def discard(self, stream: str, first_seq: int) -> None:
        """Retention takes everything before this sequence."""
        there = self.streams[stream]
        for seq in [one for one in there.messages if one < first_seq]:
            there.delete(seq)
        there.first_seq = max(there.first_seq, first_seq)

    def _create(self, config: dict[str, Any]) -> Answer:
        if config.get("no_ack"):
            self.silent.add(config["name"])
        return super()._create(config)

    def _store(self, message: tuple[Stream, str, str, Headers, bytes]) -> None:
        stream, subject, reply, headers, payload = message
        said = "" if stream.name in self.silent else reply
        super()._store((stream, subject, said, headers, payload))

    def publish(self, subject: str, reply: str, headers: Headers | None, payload: bytes) -> None:
        if subject.startswith(_ACK):
            words = subject.split(".")
            self.asked.append(f"ACK {words[5]}")
            reader = self.streams[words[2]].consumers.get(words[3])
            seq, number = int(words[5]), int(words[6])
            # As the server: an acknowledgement counts if it is beyond the last one in both.
            if (
                reader is not None
                and seq > reader.acknowledged
                and number > reader.acknowledged_number
            ):
                reader.acknowledged, reader.acknowledged_number = seq, number
            return
        super().publish(subject, reply, headers, payload)

    # Asking.

    def _ask(self, message: tuple[str, str, bytes]) -> None:
        subject, reply, payload = message
        words = subject.split(".")
        name = next((one for one in words if one in self.streams), "")
        verb = subject.split(f".{name}", 1)[0] if name else ""
        self.asked.append(verb)
        if not self.up or verb in self.unanswered:
            return
        body = json.loads(payload) if payload else {}
        if verb == "STREAM.INFO":
            self.answer(reply, _info(self.streams[name], body, lists_holes=self.lists_holes))
        elif verb == "STREAM.MSG.GET":
            self.answer(reply, self._got(self.streams[name], body))
        else:
            super()._ask(message)

    def _got(self, stream: Stream, wanted: dict[str, Any]) -> Answer:
        if (subject := wanted.get("last_by_subj")) is not None:
            wanted = {"seq": stream.by_subject.get(subject, 0)}
        elif "next_by_subj" in wanted:
            pattern = wanted["next_by_subj"] or ">"
            found = (
                seq
                for seq in sorted(stream.messages)
                if seq >= (wanted.get("seq") or 1)
                and matches(pattern, stream.messages[seq].subject)
            )
            wanted = {"seq": next(found, 0)}
        return self._message(stream, wanted)

    # Readers.

    def _consumer(self, verb: str, stream: Stream, name: str, reply: str, payload: bytes) -> None:
        body = json.loads(payload) if payload else {}
        if verb == "CONSUMER.CREATE":
            self.answer(reply, self._created(stream, body["config"]))
        elif verb == "CONSUMER.DELETE":
            self.answer(reply, self.deleted(stream, name))
        elif name not in stream.consumers:
            self.answer(reply, _NO_CONSUMER if verb == "CONSUMER.INFO" else None)
        elif verb == "CONSUMER.INFO":
            answer = _reader_info(stream.consumers[name])
            self.answer(reply, {**answer, "num_pending": 0} if self.lags else answer)
        else:
            self._requested(stream.consumers[name], reply, body)

    def _created(self, stream: Stream, config: dict[str, Any]) -> Answer:
        before = stream.consumers.get(config["name"])
        if before is not None and before.config != config:
            return _NAME_TAKEN
        first = config.get("opt_start_seq") or 1
        reader = Reader(stream, config["name"], config, max(first, stream.first_seq))
        reader.acknowledged = reader.next_seq - 1
        stream.consumers[reader.name] = reader
        return _reader_info(reader)

    def deleted(self, stream: Stream, name: str) -> Answer:
        reader = stream.consumers.pop(name, None)
        if reader is None:
            return _NO_CONSUMER
        for request in reader.requests:
            self.route(request.reply, "", {"Status": "409 Consumer Deleted"}, b"")
        return {"success": True}

    def _requested(self, reader: Reader, reply: str, body: dict[str, Any]) -> None:
        request = Request(
            reply,
            body["batch"],
            body.get("max_bytes") or 1 << 60,
            self.loop.now + body["expires"] / 1e9,
            body.get("idle_heartbeat", 0) / 1e9,
        )
        reader.requests.append(request)
        self.at(request.expires, self._expire_request, (reader, request))
        if request.heartbeat_s:
            self.at(self.loop.now + request.heartbeat_s, self._beat, (reader, request))
        self._feed(reader)

    def _feed(self, consumer: Any) -> None:
        reader: Reader = consumer
        stream = reader.stream
        while reader.requests and reader.next_seq <= stream.last_seq and not self.holds_back:
            found = stream.messages.get(reader.next_seq)
            if found is None or not reader.wants(found.subject):
                reader.next_seq += 1
                continue
            request = reader.requests[0]
            place = _place(reader, found)
            size = len(found.payload) + len(found.subject) + len(place)
            size += len(header_bytes(found.headers)) if found.headers else 0
            if size > request.size_left:
                reader.requests.pop(0)
                self._end(request, "409 Message Size Exceeds MaxBytes")
                continue
            reader.next_seq += 1
            reader.given += 1
            request.left -= 1
            request.size_left -= size
            self.route_pull(request.reply, found, place)
            if not request.left:
                reader.requests.pop(0)

    def give_out_again(self) -> None:
        """Deliver the messages that were held back."""
        self.holds_back = False
        for stream in self.streams.values():
            for reader in stream.consumers.values():
                self._feed(reader)

    def _beat(self, message: tuple[Reader, Request]) -> None:
        reader, request = message
        if not self.up or request not in reader.requests:
            return
        said = {"Status": "100 Idle Heartbeat", "Nats-Last-Consumer": str(reader.given)}
        self.route(request.reply, "", said, b"")
        self.at(self.loop.now + request.heartbeat_s, self._beat, message)

    def _expire_request(self, message: tuple[Reader, Request]) -> None:
        reader, request = message
        if self.up and request in reader.requests:
            reader.requests.remove(request)
            self._end(request, "408 Request Timeout")

    def _end(self, request: Request, why: str) -> None:
        status = {
            "Status": why,
            "Nats-Pending-Messages": str(request.left),
            "Nats-Pending-Bytes": str(min(request.size_left, 1 << 40)),
        }
        self.route(request.reply, "", status, b"")


def _place(reader: Reader, found: Stored) -> str:
    """The acknowledgement subject of the reader's next message."""
    stored = int(found.time * 1e9) + 1
    number = reader.given + 1
    return f"{_ACK}{reader.stream.name}.{reader.name}.1.{found.seq}.{number}.{stored}.0"


def _info(stream: Stream, asked: dict[str, Any], *, lists_holes: bool) -> Answer:
    answer = stream.info()
    first = answer["state"]["first_seq"]
    there = stream.messages if lists_holes else range(stream.last_seq)
    gone = [seq for seq in range(first, stream.last_seq) if seq and seq not in there]
    answer["state"]["num_deleted"] = len(gone)
    if asked.get("deleted_details"):
        answer["state"]["deleted"] = gone
    if pattern := asked.get("subjects_filter"):
        subjects = [one.subject for one in stream.messages.values()]
        answer["state"]["subjects"] = {one: 1 for one in subjects if matches(pattern, one)}
    return answer


def _reader_info(reader: Reader) -> Answer:
    return {
        "type": "io.nats.jetstream.api.v1.consumer_create_response",
        "stream_name": reader.stream.name,
        "name": reader.name,
        "created": "2026-09-19T00:00:00Z",
        "config": {**reader.config, "ack_policy": reader.config.get("ack_policy", "none")},
        "delivered": {"consumer_seq": reader.given, "stream_seq": reader.next_seq - 1},
        "ack_floor": {"consumer_seq": 0, "stream_seq": reader.acknowledged},
        "num_ack_pending": 0,
        "num_redelivered": 0,
        "num_waiting": len(reader.requests),
        "num_pending": reader.pending(),
    }
