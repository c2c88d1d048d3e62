"""Counts acknowledged events, by table and operation.

Called with all messages that one answer acknowledged, so that nothing is counted message by message
if answers are few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

from headrace.contract.subjects_and_ids import CDC
from headrace.jetstream.publishing.message import Message
from headrace.metrics.counters import Counters

_BATCH = ".batch"
_SUBJECT = attrgetter("subject")
_PREFIX = len(CDC) + 1


def tally(stats: Counters, messages: Sequence[Message]) -> None:
    """These messages are stored."""
    total = len(messages)
    # Subject by subject, at the speed of C: cdc.{table}.{operation} contains the label values.
    for subject, number in Counter(map(_SUBJECT, messages)).items():
        events = number
        # Several events in one message: only its id says how many, without decoding it again.
        if subject.endswith(_BATCH):
            events = sum(_events(message) for message in messages if message.subject == subject)
            total += events - number
        stats.count_in("table_events", subject[_PREFIX:].replace(".", " "), events)
    stats.count("cdc_events", total)


def _events(message: Message) -> int:
    """The number of events in a batch, according to its id."""
    number = message.msg_id.rpartition("-")[2]
    if number.isdigit():
        return int(number)
    return 1
