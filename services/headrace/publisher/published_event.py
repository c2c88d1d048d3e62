"""Encoded events, and how far the log is complete with them: the assembler's output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace.jetstream.publishing.message import NO_HEADERS
from headrace.lsn import ORIGIN, Position


class PublishedEvent(NamedTuple):
    """An encoded event with its position; `advances` is False if it only describes the event after
    it.
    """

    subject: str
    msg_id: str
    payload: bytes
    headers: Mapping[str, str] = NO_HEADERS
    advances: bool = True
    position: Position = ORIGIN
    # It is its transaction's last, or outside any.
    ends: bool = False
    # The whole payload if it is too large for a message: then `payload` refers to it by the event's
    # id.
    large: bytes | None = None


@dataclass(frozen=True, slots=True)
class CompleteUpTo:
    """Everything before `lsn` has been yielded; `whole`: by a transaction's end."""

    lsn: int
    whole: bool


Assembled = PublishedEvent | CompleteUpTo
