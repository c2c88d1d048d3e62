"""The events of a message of the stream, whatever it was compressed with.

Owns the order: the dictionary that a message needs is read before the message is. Everything that
reads a message of the stream of changes reads it here.
"""

from __future__ import annotations

from headrace.consumer.event import Event, of_message
from headrace.contract.dictionaries import ZSTD_MAGIC
from headrace.jetstream.dictionaries import DictionaryReader


async def events_of(
    dictionaries: DictionaryReader, data: bytes, subject: str, stream_seq: int, header: bytes = b""
) -> list[Event]:
    if data[:4] == ZSTD_MAGIC:
        await dictionaries.learn_for(data)
    return of_message(data, subject, stream_seq, header)
