"""Which transaction dropped a table, without a clock: from the log and the names of relations.

Promises that the transaction found is the last one that dropped a table of this name on the way to
the newest timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.backup.errors import NoSuchMomentError
from headrace.backup.names import NamesBook, Naming
from headrace.backup.plan import Planner, format_time
from headrace.backup.store import BackupStore


@dataclass(frozen=True, slots=True)
class Drop:
    """A transaction that dropped a relation."""

    # Of the commit record.
    lsn: int
    xid: int
    # By the server's clock, in microseconds since 1970.
    time_us: int
    # The relation's number, which is never used twice at a time.
    database: int
    oid: int
    # The relation's last known name; None if no look at the catalog saw it.
    name: str | None


def drops(store: BackupStore, planner: Planner) -> list[Drop]:
    """All dropped relations of the stored log, the last one first, with the names that are known.

    Indexes, sequences and tables without a known name are among them.
    """
    namings = NamesBook(store).read()
    return planner.steadily(lambda: _drops(planner, namings))


def _drops(planner: Planner, namings: Sequence[Naming]) -> list[Drop]:
    stretches = {stretch.timeline: stretch for stretch in planner.way(planner.timeline)}
    # By place and relation: a part and the whole segment may both be in the listing for a moment.
    found = {}
    for piece in planner.pieces:
        stretch = stretches.get(piece.timeline)
        if stretch is None:
            continue
        for lsn, xid, time_us, database, oid in planner.facts(piece).get("dropped", ()):
            # A drop on a timeline that was left before it never happened on this way.
            if lsn < stretch.end:
                name = _name(namings, database, oid, lsn)
                found[lsn, oid] = Drop(lsn, xid, time_us, database, oid, name)
    return [found[key] for key in sorted(found, reverse=True)]


def _name(namings: Sequence[Naming], database: int, oid: int, lsn: int) -> str | None:
    name = None
    for naming in namings:
        # The last name before the drop counts: a table may have been renamed.
        if naming.oid == oid and naming.database == database and naming.lsn <= lsn:
            name = f"{naming.relation.schema}.{naming.relation.name}"
    return name


def find_drop(store: BackupStore, planner: Planner, schema: str, table: str) -> Drop:
    """The last drop of a table with this name."""
    wanted = f"{schema}.{table}"
    found = drops(store, planner)
    for drop in found:
        if drop.name == wanted:
            return drop
    # One transaction may drop many relations: each is named once.
    unnamed = {drop.xid: drop for drop in found if drop.name is None}
    remedy = "`headrace backup drops` lists the dropped tables; otherwise name a moment with --at."
    if unnamed:
        last = next(iter(unnamed.values()))
        remedy = (
            f"A relation without a known name was dropped by transaction {last.xid} at "
            f"{format_time(last.time_us)}: name that with --before-xid, or a moment with --at."
        )
    raise NoSuchMomentError(f"no drop of {wanted} is in the stored log", remedy=remedy)
