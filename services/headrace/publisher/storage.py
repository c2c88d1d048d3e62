"""Compares two catalog readings of a table's files: whether its rows changed without events. Pure.

A new file proves little: TRUNCATE (an event), VACUUM FULL and CLUSTER (the same rows) create
one too. Other differences distinguish them: ALTER TABLE writes columns' definitions, or, if it
rewrites for another reason (UNLOGGED and back), recreates the TOAST table, which the others keep.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace.postgres.facts import follows


class File(NamedTuple):
    """A relation's file, the transaction that last defined the relation, and its TOAST table (0:
    none).
    """

    node: int
    by: int
    toast: int


@dataclass(frozen=True, slots=True)
class Storage:
    """A reading's facts; `exposed`: the table, not being published by its own name, may become
    unlogged.
    """

    files: Mapping[int, File]
    columns: str
    partitions: frozenset[str]
    exposed: bool

    @classmethod
    def parse(cls, text: str) -> Storage | None:
        """None if it was not read yet, or was stored by an earlier version."""
        # An earlier version stored a checksum of the files.
        if text.count("/") != _PARTS - 1 or ":" not in text:
            return None
        # relation:node:by:toast,… / definitions of columns / partitions,…
        files, columns, partitions = text.split("/")
        made = {}
        for one in files.removeprefix(_EXPOSED).split(","):
            relation, *file = map(int, one.split(":"))
            made[relation] = File(*file)
        return cls(
            made,
            columns,
            frozenset(filter(None, partitions.split(","))),
            files.startswith(_EXPOSED),
        )

    @property
    def divided(self) -> bool:
        """Whether the rows are in partitions."""
        return any(not file.node for file in self.files.values())


_PARTS = 3
_EXPOSED = "u"
# A file, or a definition of columns, that belongs to no other relation.
_UNKNOWN = -1


def as_of(text: str, xid: int, next_xid: int) -> str:
    """A reading's facts, without what a later transaction than `xid` did to files: that is yet to
    be reported.

    `next_xid` was to be assigned next when it was read.
    """
    storage = Storage.parse(text)
    if storage is None or not any(
        follows(file.by, xid, next_xid) for file in storage.files.values()
    ):
        return text
    partitions = text.rpartition("/")[2]
    files = dict(storage.files)
    for relation, file in storage.files.items():
        if follows(file.by, xid, next_xid):
            files[relation] = file._replace(node=_UNKNOWN)
    listed = ",".join(
        f"{relation}:{file.node}:{file.by}:{file.toast}" for relation, file in files.items()
    )
    return f"{_EXPOSED if storage.exposed else ''}{listed}/{_UNKNOWN}/{partitions}"


def same_files(before: str, now: str) -> bool:
    """Whether no file was rewritten since; False if nothing is known."""
    was = Storage.parse(before)
    is_ = Storage.parse(now)
    return was is not None and is_ is not None and not _replaced(was, is_, ())


def rewritten(before: str, now: str, truncated: Collection[int]) -> bool:
    """Whether rows may have changed without events; `truncated` by these transactions' events."""
    was = Storage.parse(before)
    is_ = Storage.parse(now)
    if was is None or is_ is None or not (replaced := _replaced(was, is_, truncated)):
        return False
    if was.columns != is_.columns:
        return True
    return not is_.divided and any(_may_be_others(*pair, exposed=is_.exposed) for pair in replaced)


def partitions_moved(before: str, now: str, truncated: Collection[int]) -> bool:
    """Whether rows came or went with a partition: it is gone, was a table before, or has another
    file.

    The last may be a TRUNCATE of only the partition, for which a table published as its root has no
    event.
    """
    was = Storage.parse(before)
    is_ = Storage.parse(now)
    if was is None or is_ is None:
        return False
    if is_.divided and was.columns == is_.columns and _replaced(was, is_, truncated):
        return True
    known = dict(map(_attachment, was.partitions))
    now_there = dict(map(_attachment, is_.partitions))
    if not known.keys() <= now_there.keys():
        return True
    # An `a` marks a partition that was attached: before that, its rows were another table's.
    return any(
        by.startswith("a") and (relation not in known or _differ(known[relation], by))
        for relation, by in now_there.items()
    )


def _attachment(partition: str) -> tuple[str, str]:
    """A partition's number, and by which transaction it was attached (`a7`), or nothing if it was
    created as a partition.
    """
    relation, mark, by = partition.partition("a")
    return relation, mark + by


def _differ(before: str, now: str) -> bool:
    """Whether a partition was attached again. An earlier version stored no transaction."""
    return "a" not in (before, now) and before != now


def _replaced(was: Storage, is_: Storage, truncated: Collection[int]) -> list[tuple[File, File]]:
    """Changed files, except for those whose relation's last change was a TRUNCATE that has its
    event.
    """
    return [
        (old, new)
        for relation, new in is_.files.items()
        if (old := was.files.get(relation)) is not None
        and old.node != new.node
        and new.by not in truncated
    ]


def _may_be_others(old: File, new: File, *, exposed: bool) -> bool:
    # VACUUM FULL and CLUSTER keep the TOAST table, a rewrite by ALTER TABLE makes another one.
    if old.toast and new.toast:
        return old.toast != new.toast
    # Nothing here distinguishes UNLOGGED and back from VACUUM FULL.
    return exposed
