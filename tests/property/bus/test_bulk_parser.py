"""The bulk parser reads the same messages as nats-py's own parser, for any cuts of the bytes and
any content in between.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from headrace.jetstream.bulk import Arrival, BulkParser

HEARD, OTHER = (7, 12), (1, 70, 127)


class Recorded:
    """The calls that a connection gets from its parser."""

    def __init__(self) -> None:
        self.messages: dict[int, list[Arrival]] = defaultdict(list)
        self.said: list[object] = []
        self.stats = {"in_msgs": 0, "in_bytes": 0}

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, header: bytes | None
    ) -> None:
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        self.messages[sid].append((bytes(subject), bytes(reply), bytes(header or b""), bytes(data)))

    async def _process_ping(self) -> None:
        self.said.append("ping")

    async def _process_pong(self) -> None:
        self.said.append("pong")

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.said.append(info)

    async def _process_err(self, error: str) -> None:
        self.said.append(error)


def message(sid: int, reply: str, header: bytes, payload: bytes) -> bytes:
    subject = f"cdc.t{sid}.insert"
    words = f"{subject} {sid} {reply}".rstrip()
    if header:
        return (
            f"HMSG {words} {len(header)} {len(header) + len(payload)}\r\n".encode()
            + header
            + payload
            + b"\r\n"
        )
    return f"MSG {words} {len(payload)}\r\n".encode() + payload + b"\r\n"


messages = st.builds(
    message,
    st.sampled_from(HEARD + OTHER),
    st.sampled_from(["", "$JS.ACK.CDC.c.1.5.6.7.8", "x"]),
    st.sampled_from(
        [
            b"",
            b"NATS/1.0\r\n\r\n",
            b"NATS/1.0 100 Idle Heartbeat\r\n\r\n",
            b"NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n",
        ]
    ),
    # Payloads that look like commands, and the end of one.
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([b"", b"\r\n", b"MSG a 7 1\r\n\r\n", b"PING\r\n" * 9, b"x" * 5000]),
    ),
)
others = st.sampled_from(
    [b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'slow'\r\n", b'INFO {"a":1}\r\n']
)
streams = st.lists(st.one_of(messages, messages, others), max_size=12).map(b"".join)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


async def by_nats(parts: list[bytes]) -> Recorded:
    collected = Recorded()
    parser = Parser(collected)
    for part in parts:
        await parser.parse(part)
    return collected


async def by_bulk(parts: list[bytes], after: int) -> Recorded:
    """The bulk parser takes nats-py's place after some parts."""
    collected = Recorded()
    parser = Parser(collected)
    for number, part in enumerate(parts):
        if number == after:
            parser = BulkParser(collected, parser)  # type: ignore[arg-type]  # what it uses of a client
            for sid in HEARD:
                parser.listeners[b"%d" % sid] = collected.messages[sid].extend
        await parser.parse(part)
    return collected


@given(streams, st.lists(st.integers(0, 3000), max_size=8), st.integers(0, 4))
def test_the_bytes_of_a_connection_say_the_same_to_both_parsers(
    data: bytes, places: list[int], after: int
) -> None:
    parts = cut(data, places)
    expected, found = asyncio.run(by_nats(parts)), asyncio.run(by_bulk(parts, after))
    assert {sid: all_ for sid, all_ in found.messages.items() if all_} == expected.messages
    assert found.said == expected.said
    assert found.stats == expected.stats


async def test_each_listener_gets_its_messages_and_nats_all_others() -> None:
    collected = Recorded()
    parser = BulkParser(collected, Parser(collected))  # type: ignore[arg-type]  # what it uses of a client
    heard: dict[int, list[Arrival]] = {sid: [] for sid in HEARD}
    for sid, arrivals in heard.items():
        parser.listeners[b"%d" % sid] = arrivals.extend
    # The size of one is another's number.
    sent = [(12, b"a"), (7, b"b" * 12), (7, b"c"), (1, b"d" * 7), (12, b"e" * 7)]
    await parser.parse(b"".join(message(sid, "", b"", payload) for sid, payload in sent))
    assert not collected.messages.keys() & heard.keys(), "nats-py's own way is slow"
    found = {**heard, **collected.messages}
    assert {sid: [payload for *_, payload in found[sid]] for sid in found} == {
        sid: [payload for other, payload in sent if other == sid] for sid in (*HEARD, 1)
    }


async def test_a_message_that_the_old_connection_began_is_no_part_of_the_new_one() -> None:
    collected = Recorded()
    parser = BulkParser(collected, Parser(collected))  # type: ignore[arg-type]  # what it uses of a client
    parser.listeners[b"7"] = collected.messages[7].extend
    begun, whole = message(7, "", b"", b"lost" * 10), message(7, "", b"", b"new")
    await parser.parse(begun[:30])
    parser.reset()
    await parser.parse(whole)
    assert [payload for *_, payload in collected.messages[7]] == [b"new"]


async def test_what_stands_behind_the_word_that_ends_a_connection_is_forgotten() -> None:
    class Ending(Recorded):
        async def _process_err(self, error: str) -> None:
            await super()._process_err(error)
            parser.reset()

    collected = Ending()
    parser = BulkParser(collected, Parser(collected))  # type: ignore[arg-type]  # what it uses of a client
    parser.listeners[b"7"] = collected.messages[7].extend
    rest = message(7, "", b"", b"of the old connection")
    await parser.parse(b"-ERR 'stale connection'\r\n" + rest[:20])
    await parser.parse(message(7, "", b"", b"new"))
    assert [payload for *_, payload in collected.messages[7]] == [b"new"]


@pytest.mark.parametrize("data", [b"MSG a 7 x\r\n", b"MSG\r\n", b"nonsense\r\n"])
async def test_what_is_no_command_ends_the_connection_as_with_nats_py(data: bytes) -> None:
    collected = Recorded()
    parser = BulkParser(collected, Parser(collected))  # type: ignore[arg-type]  # what it uses of a client
    parser.listeners[b"7"] = collected.messages[7].extend
    with pytest.raises(ProtocolError):
        await parser.parse(data)
