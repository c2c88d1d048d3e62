"""The bytes that are sent in bulk are those that nats-py would send."""

from __future__ import annotations

from nats.aio.client import Client

from headrace.jetstream.publishing import wire
from headrace.jetstream.publishing.message import Outgoing


class Recorded(Client):
    """nats-py's own publish, up to where it would write."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""

    async def _send_command(self, cmd: bytes, priority: bool = False) -> None:  # noqa: ARG002  # nats-py's own
        self.sent += cmd


async def published(
    subject: str, reply: str, headers: dict[str, str] | None, payload: bytes
) -> bytes:
    """Through the public call's own last step, which needs no connection."""
    recorded = Recorded()
    await recorded._send_publish(subject, reply, payload, len(payload), headers)
    return recorded.sent


async def test_a_composed_message_is_what_publish_would_send() -> None:
    more = {"Headrace-Position": "slot 12 3", "Odd": " two\r\nlines é "}
    for headers in ({}, more):
        message = Outgoing("cdc.t.insert", "1f-t-insert", b"\x00\xffpayload", headers)
        expected = {"Nats-Msg-Id": "1f-t-insert", "Nats-Expected-Last-Sequence": "41", **headers}
        assert wire.command(message, "_INBOX.a.b.1.0.$FI", 41) == await published(
            message.subject, "_INBOX.a.b.1.0.$FI", expected, message.payload
        )


async def test_a_message_of_an_atomic_batch_is_what_publish_would_send() -> None:
    message = Outgoing("cdc.t.insert", "1f-t-insert", b"\x00\xffpayload")
    headers = {"Nats-Msg-Id": "1f-t-insert", "Nats-Batch-Id": "b1", "Nats-Batch-Sequence": "2"}
    expected = await published(message.subject, "", headers, message.payload)
    assert wire.grouped(message, "Nats-Msg-Id", "b1", 2) == expected
    assert wire.with_headers(message.subject, "", headers, message.payload) == expected
    odd = {"Odd": " two\r\nlines é "}
    assert wire.with_headers("a", "", odd, b"") == await published("a", "", odd, b"")


def test_parts_are_all_commands_in_order_and_none_is_empty() -> None:
    commands = [bytes([number]) * 30_000 for number in range(7)]
    parts = list(wire.parts(commands))
    assert [command for part in parts for command in part] == commands
    assert [len(part) for part in parts] == [3, 3, 1]


async def test_an_end_without_a_message_is_what_publish_would_send() -> None:
    assert wire.bare("cdc.t.insert", "_INBOX.a.3.$FI") == await published(
        "cdc.t.insert", "_INBOX.a.3.$FI", None, b""
    )


async def test_what_is_handed_over_is_sent_in_order_and_counted() -> None:
    recorded = Recorded()
    await wire.hand_over(recorded, b"onetwo", 2)
    assert recorded.sent == b"onetwo"
    assert recorded.stats["out_msgs"] == 2
