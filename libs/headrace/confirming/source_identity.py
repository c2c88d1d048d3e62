"""Whether a source is the one whose changes a store contains, and what lies between the two. Pure.

LSNs of another server, or of a history that left the store's own, mean something else: nothing may
be skipped or resumed by them.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.bus.frame import Opening
from headrace.lsn import Gap, format_lsn


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """Which server's changes a store contains, and how far.

    `store` is its name in messages. An empty `system_id` and a `timeline` of 0 are not known yet.
    """

    store: str
    system_id: str
    timeline: int
    lsn: int


def divergence(known: SourceIdentity, opening: Opening) -> str | None:
    """Why the server of this epoch can't continue what the store contains; None when it can."""
    # A backup restored elsewhere, or another cluster: both number their logs on their own.
    if known.system_id and known.system_id != opening.system_id:
        return (
            f"PostgreSQL's system identifier is {opening.system_id}, the {known.store}'s is "
            f"{known.system_id}"
        )
    # An old primary came back next to its successor.
    if opening.timeline < known.timeline:
        return (
            f"PostgreSQL is on timeline {opening.timeline}, the {known.store} on {known.timeline}"
        )
    # A lagging standby was promoted, or a backup restored: it never had what the store contains.
    fork = min(
        (lsn for timeline, lsn in opening.forks if timeline >= known.timeline > 0), default=None
    )
    if fork is not None and fork <= known.lsn:
        return (
            f"PostgreSQL's timeline {opening.timeline} left timeline {known.timeline} at "
            f"{format_lsn(fork)}, before {format_lsn(known.lsn)}, where the {known.store} is: the "
            f"{known.store} has changes that this server never had"
        )
    # The same timeline, shorter: the machine lost its last writes, and other changes will get their
    # LSNs.
    if opening.current_lsn and opening.current_lsn < known.lsn:
        return (
            f"PostgreSQL's log ends at {format_lsn(opening.current_lsn)}, before "
            f"{format_lsn(known.lsn)}, where the {known.store} is"
        )
    return None


def gap_before(known_lsn: int, opening: Opening) -> Gap | None:
    """The changes that neither the slot nor a store with everything before `known_lsn` contains.

    Nobody else confirms: a slot that is further on was created again, or moved. A store that knows
    of nothing yet (0) misses nothing.
    """
    if 0 < known_lsn < opening.confirmed_lsn:
        return Gap(known_lsn, opening.confirmed_lsn, "slot_moved")
    return None
