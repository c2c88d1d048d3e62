"""Decodes the events of a stream message, with any compression.

Owns the order: the dictionary that a message needs is loaded before the message is decoded. All
readers of the change stream decode messages here.
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
