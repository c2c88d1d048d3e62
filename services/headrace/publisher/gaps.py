"""A permanent gap as an event: a range of the log that neither the stream nor the slot contains.
Pure.
"""

from __future__ import annotations

from headrace.contract import events
from headrace.contract.subjects_and_ids import GAP_SUBJECT, gap_id
from headrace.contract.values import Encoding
from headrace.lsn import Gap, Position, format_lsn
from headrace.publisher.published_event import PublishedEvent


def gap_event(gap: Gap, source: str, encoding: Encoding, first_lost: int = 0) -> PublishedEvent:
    """The gap event before the next change; it moves no consumer's position.

    `first_lost`: the first lost sequence, of a hole in the middle of the stream.
    """
    # The LSN at which the source continues. It must not advance consumers: the next event may be
    # there too.
    position = Position(gap.up_to, 0)
    # From what is lost, so that a restart that reports it again is recognized by the id.
    msg_id = gap_id(gap.up_to, source, first_lost)
    payload = {
        "subject": GAP_SUBJECT,
        "operation": events.GAP,
        "msg_id": msg_id,
        "source": source,
        "after": format_lsn(gap.after),
        "up_to": format_lsn(gap.up_to),
        "reason": gap.reason,
        "lsn": gap.up_to,
        "tx": events.transaction(0, position, None, last=False),
    }
    encoded = events.encode(payload, encoding)
    return PublishedEvent(
        GAP_SUBJECT, msg_id, encoded, advances=False, position=position, ends=True
    )
