"""Sends many messages together over nats-py's connection: composed as bytes here.

Costs a tenth of calling `publish` for each. One of three modules that touch nats-py's internals,
with `bulk` and `connection`; the plain `publish` is the oracle of the test. Subjects and ids come
from the suite and are not checked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from nats.aio.client import Client

from headrace.jetstream.publishing.message import Message

MSG_ID = "Nats-Msg-Id"
_PART_BYTES = 64 * 1024
# A line break inside a header's value would end the header, and start another one.
_NEWLINES = str.maketrans("\r\n", "  ")


def header_lines(headers: Mapping[str, str]) -> str:
    """Headers in NATS's format, each line with its end."""
    return "".join(
        [f"{key}: {value.strip().translate(_NEWLINES)}\r\n" for key, value in headers.items()]
    )


def command(message: Message, reply: str, expected_seq: int, id_header: str = MSG_ID) -> bytes:
    """The bytes that publish a message, to be stored right after this sequence of its stream."""
    more = header_lines(message.headers) if message.headers else ""
    head = (
        f"NATS/1.0\r\n{id_header}: {message.msg_id}\r\nNats-Expected-Last-Sequence: "
        f"{expected_seq}\r\n{more}\r\n"
    )
    return _command(message.subject, reply, head, message.payload)


def grouped(message: Message, id_header: str, batch: str, number: int) -> bytes:
    """The command that publishes a message inside an atomic batch (neither first nor last), without
    other headers.
    """
    head = (
        f"NATS/1.0\r\n{id_header}: {message.msg_id}\r\nNats-Batch-Id: "
        f"{batch}\r\nNats-Batch-Sequence: {number}\r\n\r\n"
    )
    return _command(message.subject, "", head, message.payload)


def with_headers(subject: str, reply: str, headers: Mapping[str, str], payload: bytes) -> bytes:
    """The command that publishes a message with these headers; without a `reply`, there is no
    answer.
    """
    return _command(subject, reply, f"NATS/1.0\r\n{header_lines(headers)}\r\n", payload)


def _command(subject: str, reply: str, head: str, payload: bytes) -> bytes:
    # HPUB counts bytes; encoding only to count them would cost every message.
    size = len(head) if head.isascii() else len(head.encode())
    line = f"HPUB {subject} {reply} {size} {size + len(payload)}\r\n{head}".encode()
    return b"%b%b\r\n" % (line, payload)


def bare(subject: str, reply: str) -> bytes:
    """The command that publishes an empty message with a subject and a reply."""
    return f"PUB {subject} {reply} 0\r\n\r\n".encode()


def parts(commands: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Commands in parts of about so many bytes as are worth a separate write."""
    part = []
    size = 0
    for command_ in commands:
        part.append(command_)
        size += len(command_)
        if size >= _PART_BYTES:
            yield part
            part = []
            size = 0
    if part:
        yield part


async def hand_over(client: Client, data: bytes, count: int) -> None:
    """Send commands, of so many messages, in one piece and in order, even from several tasks."""
    # nats-py counts only what goes through its own `publish`.
    client.stats["out_msgs"] += count
    client.stats["out_bytes"] += len(data)
    # There is no public call for bytes. This one puts them in the buffer before anything in it may
    # wait.
    await client._send_command(data)  # noqa: SLF001
    # Ends like `publish`: the buffer is written soon, without waiting for an answer as `flush`
    # does.
    if client._flush_queue is not None and client._flush_queue.empty():  # noqa: SLF001
        await client._flush_pending()  # noqa: SLF001
