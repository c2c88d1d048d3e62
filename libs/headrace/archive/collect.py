"""Garbage collection: removes the oldest files and bases, by age and by what still needs them.

Promises: never removes the last file, which the archiver continues from; never removes a file that
a registered reader has not read, unless requested, nor one that a base which stays or is being
taken needs; always removes the oldest first, so that ids have no gaps however a collection ends. Of
a table's bases it keeps the newest one that is old enough, and all younger ones: every moment since
then stays within reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from headrace.archive import layout
from headrace.archive.bases import BaseRecord, Bases, ListedBase, UnfinishedBase
from headrace.archive.registry import Registered, registered
from headrace.archive.store import Names, ObjectMetadata, Store

# A base that is being taken stores its next part sooner.
UNFINISHED_AGE = timedelta(days=2)


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """The files and bases to remove, and what prevents the removal of others."""

    remove: tuple[ObjectMetadata, ...]
    kept_by: tuple[Registered, ...]
    bases: tuple[BaseRecord, ...] = ()
    unfinished: tuple[UnfinishedBase, ...] = ()
    # The base that needs the oldest file that would be removed otherwise.
    kept_for: BaseRecord | None = None


def plan(
    store: Store, older_than_s: float, *, past_readers: bool = False, now: datetime | None = None
) -> CollectionPlan:
    """Plan what to remove; with `past_readers`, even files that a reader has not read.

    An age is measured by the store's clock: the clock of the collecting machine may be wrong.
    """
    # The bases first: one that begins after this needs only later files than those listed, the last
    # of which stays.
    found = Bases(store)
    listed = found.all()
    unfinished = found.unfinished()
    # Other objects lie among the files.
    files: list[ObjectMetadata] = [
        item for item in store.ask(Names("")) or [] if layout.file_id(item.location) is not None
    ]
    if len(files) <= 1 and not listed and not unfinished:
        return CollectionPlan((), ())
    # Only now: asking for the time writes an object.
    moment = now or store.now()
    before = moment - timedelta(seconds=older_than_s)
    old = _unneeded(listed, before)
    kept = [base.record for base in listed if base.record not in old]
    left = tuple(one for one in unfinished if one.written_at < moment - UNFINISHED_AGE)
    # The changes after a snapshot are in files that are written after it.
    begun = [one.begun_at for one in unfinished if one not in left]
    before = min([before, *begun])
    readers = registered(store)
    if past_readers or not readers:
        wanted = None
    else:
        wanted = min(reader.next_id for reader in readers)
    needed = min(kept, key=lambda record: record.next_id, default=None)
    remove: list[ObjectMetadata] = []
    for item in files[:-1]:
        number = layout.file_id(item.location)
        assert number is not None, "others were left out"
        # The first young one ends it, even if older ones follow: ids must not get gaps.
        if item.last_modified >= before:
            break
        if needed is not None and number >= needed.next_id:
            return CollectionPlan(tuple(remove), (), old, left, needed)
        if wanted is not None and number >= wanted:
            blocking = tuple(reader for reader in readers if reader.next_id == wanted)
            return CollectionPlan(tuple(remove), blocking, old, left)
        remove.append(item)
    return CollectionPlan(tuple(remove), (), old, left)


def _unneeded(bases: Sequence[ListedBase], before: datetime) -> tuple[BaseRecord, ...]:
    """Those with a younger one of their table that is old enough, too."""
    found = []
    newest: dict[tuple[str, str], BaseRecord] = {}
    # By LSN.
    for base in bases:
        if base.stored_at < before:
            if older := newest.get(base.record.name):
                found.append(older)
            newest[base.record.name] = base.record
    return tuple(found)


def carry_out(store: Store, planned: CollectionPlan) -> None:
    """Remove what is planned: bases before the files that they need, files the oldest first."""
    bases = Bases(store)
    for record in planned.bases:
        bases.remove(record)
    for left in planned.unfinished:
        bases.remove_unfinished(left)
    for item in planned.remove:
        store.delete(item.location)
