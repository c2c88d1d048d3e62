"""The search of stored events that a request asks for.

The newest come first. `next` names the place where the following request continues: the sequence of
a message and the number of its events that were returned already.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from headrace.console.access import Caller
from headrace.console.cells import TEXT_CHARACTERS_MAX, Redaction, event_document, weight
from headrace.console.filters import EventFilter
from headrace.console.positions import number_in, position_in
from headrace.console.problem import invalid
from headrace.console.reading import NEAR, EventReader, Searched, StoredMessage, committed_at
from headrace.consumer.event import Event
from headrace.lsn import Position

LIMIT = 100
LIMIT_MAX = 500
# A page ends after this, even with fewer events than its limit.
PAGE_BYTES_MAX = 4 << 20
Bound = Position | datetime | None


def limit_of(query: Mapping[str, str]) -> int:
    """How many items an answer may have."""
    text = query.get("limit", str(LIMIT))
    limit = number_in(text)
    if limit is None or not 1 <= limit <= LIMIT_MAX:
        raise invalid(f"limit={text[:40]!r} is not a number from 1 to {LIMIT_MAX}")
    return limit


def begin_of(query: Mapping[str, str]) -> int:
    """The place in a list at which an answer begins."""
    return number_in(query.get("cursor", "")) or 0


async def search(
    reader: EventReader,
    caller: Caller,
    redaction: Redaction,
    query: Mapping[str, str],
    characters_max: int | None = TEXT_CHARACTERS_MAX,
) -> dict[str, Any]:
    """A page of events that fit the query."""
    wanted = EventFilter.of(query)
    since, until = bound(query.get("from", "")), bound(query.get("to", ""))
    limit = limit_of(query)
    first, last = await reader.bounds()
    skipped = 0
    if query.get("cursor"):
        last, skipped = _place(query["cursor"])
    elif until is not None:
        # Without it, a search of last week would read this week first.
        beyond = await reader.first_where(lambda event: _is_after(event, until))
        # Commit times are not quite in the order of the stream.
        last = min(last, beyond + NEAR)
    if since is not None:
        first = max(first, await reader.first_where(lambda one: not _is_before(one, since)) - NEAR)
    # The answer has it, so that "nothing found" never claims more than what was read.
    searched = Searched()
    items: list[dict[str, Any]] = []
    size = 0
    following: str | None = None
    at = last + 1
    async for message in reader.backwards(last, first, searched):
        at = message.seq
        for number, event in _latest_first(message, skipped):
            searched.oldest = (event.payload.get("tx") or {}).get("ts") or searched.oldest
            if _is_after(event, until) or _is_before(event, since) or not wanted.accepts(event):
                continue
            if wanted.needs_values and not wanted.fits(event, caller, redaction):
                searched.large += wanted.compares_values and "reference" in event.payload
                continue
            items.append(event_document(event, caller, redaction, characters_max))
            size += weight(items[-1])
            if len(items) == limit or size > PAGE_BYTES_MAX:
                following = f"{message.seq}.{number + 1}"
                break
        skipped = 0
        if following is not None:
            break
    # The budget was used up: the page says how far back it read, and continues on request.
    if following is None and not searched.complete:
        following = f"{at - 1}.0"
    return {"items": items, "next": following, "searched": searched.document()}


def _latest_first(message: StoredMessage, skipped: int) -> list[tuple[int, Event]]:
    return list(enumerate(reversed(message.events)))[skipped:]


def _place(cursor: str) -> tuple[int, int]:
    # Sequences and not positions: they say where to read without a search.
    first, _, second = cursor.partition(".")
    seq, skipped = number_in(first), number_in(second)
    if seq is None or skipped is None:
        raise invalid("the cursor is malformed", "Use `next` of the answer before.")
    return seq, skipped


def bound(text: str) -> Bound:
    """A moment or a position, as a query writes it."""
    if not text:
        return None
    if "T" not in text and ":" not in text:
        return position_in(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise invalid(f"{text!r} is not a time", "Write 2026-01-31T12:00:00Z.") from error
    if moment.tzinfo is None:
        # Times without a zone would mean another moment for each reader.
        return moment.replace(tzinfo=UTC)
    return moment


def _is_after(event: Event, until: Bound) -> bool:
    if until is None:
        return False
    if isinstance(until, Position):
        return event.position > until
    at = committed_at(event)
    return at is not None and at > until


def _is_before(event: Event, since: Bound) -> bool:
    if since is None:
        return False
    if isinstance(since, Position):
        return event.position < since
    at = committed_at(event)
    return at is not None and at < since
