"""Garbage collection: removes the oldest files, by age and by the progress of registered readers.

Promises: never removes the last file, which the archiver continues from; never removes a file that
a registered reader has not read, unless requested; always removes the oldest first, so that ids
have no gaps however a collection ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from headrace.archive import layout
from headrace.archive.registry import Registered, registered
from headrace.archive.store import Names, ObjectMetadata, Store


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """The files to remove, and the readers that prevent the removal of others."""

    remove: tuple[ObjectMetadata, ...]
    kept_by: tuple[Registered, ...]


def plan(
    store: Store, older_than_s: float, *, past_readers: bool = False, now: datetime | None = None
) -> CollectionPlan:
    """Plan which files to remove; with `past_readers`, even those that a reader has not read.

    A file's age is measured by its store's clock: the clock of the collecting machine may be wrong.
    """
    # Other objects lie among the files.
    files: list[ObjectMetadata] = [
        item for item in store.ask(Names("")) or [] if layout.file_id(item.location) is not None
    ]
    if len(files) <= 1:
        return CollectionPlan((), ())
    # Only now: asking for the time writes an object.
    before = (now or store.now()) - timedelta(seconds=older_than_s)
    readers = registered(store)
    if past_readers or not readers:
        wanted = None
    else:
        wanted = min(reader.next_id for reader in readers)
    remove: list[ObjectMetadata] = []
    for item in files[:-1]:
        number = layout.file_id(item.location)
        assert number is not None, "others were left out"
        # The first young one ends it, even if older ones follow: ids must not get gaps.
        if item.last_modified >= before:
            break
        if wanted is not None and number >= wanted:
            return CollectionPlan(
                tuple(remove), tuple(reader for reader in readers if reader.next_id == wanted)
            )
        remove.append(item)
    return CollectionPlan(tuple(remove), ())


def carry_out(store: Store, planned: CollectionPlan) -> None:
    """Remove the planned files, the oldest first."""
    for item in planned.remove:
        store.delete(item.location)
