"""Records of facts about tables and transactions, which `catalog` reads. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.contract.values import TypeInfo

_XID_MASK = 0xFFFFFFFF


def precedes(xid: int, other: int) -> bool:
    """Whether a transaction id was assigned before another, by the 32 bits that the stream has of
    them.
    """
    return (xid - other) & _XID_MASK >= 1 << 31


def follows(defined_by: int, xid: int, next_xid: int) -> bool:
    """Whether a catalog row is from a later transaction than `xid`; `next_xid` was to be assigned
    next.

    Only ids in between can be. A row keeps its transaction id forever: after two billion
    transactions such an id may look later than any.
    """
    between = (next_xid - xid) & _XID_MASK
    return between < 1 << 31 and 0 < (defined_by - xid) & _XID_MASK < between


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The server and the history of its log; an empty `system_id` and a `timeline` of 0 are not
    known.
    """

    system_id: str = ""
    timeline: int = 0

    def contradicts(self, other: ServerIdentity) -> bool:
        """Whether the two are known to be of different servers or histories."""
        servers = {self.system_id, other.system_id} - {""}
        histories = {self.timeline, other.timeline} - {0}
        return len(servers) > 1 or len(histories) > 1


UNKNOWN_SERVER = ServerIdentity()


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """Facts about a column that only the catalog has.

    `number`: its place in the table's history; 0 if the catalog is newer than the stream and can't
    say which column this was. `filled`: adding it may have given existing rows a value; `missing`
    is that value as PostgreSQL's text, if it is the same for all of them.
    """

    number: int
    is_nullable: bool
    column_default: str | None
    filled: bool
    missing: bytes | None = None


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts from the catalog that a relation message lacks."""

    primary_key: tuple[str, ...] = ()
    # Defined by a transaction later than the current change, which may have had another key.
    key_is_later: bool = False
    types: dict[int, TypeInfo] = field(default_factory=dict)
    columns: dict[str, ColumnFacts] = field(default_factory=dict)
    type_names: dict[tuple[int, int], str] = field(default_factory=dict)
    # Only for domains.
    base_types: dict[int, str] = field(default_factory=dict)
    membership: int = 0
    # The highest number that any column of the table ever had.
    last_number: int = 0
    # The storage of its rows, the content of the publication, and an LSN that the reading is not
    # beyond.
    storage: str = ""
    publication: str = ""
    lsn: int = 0
    # The id that a transaction would have got next.
    next_xid: int = 0


@dataclass(frozen=True, slots=True)
class RelationFiles:
    """The files of a relation, its partitions' among them, as a reading had them before the log
    reached `lsn`.

    `first`: the table still has the file that it was created with, so nothing ever rewrote or
    truncated it. `joined`: the transactions since which it is in publications, itself, through an
    ancestor or its schema.
    """

    text: str
    lsn: int
    first: bool
    joined: tuple[int, ...] = ()
    # The transaction ID to be assigned next when it was read.
    next_xid: int = 0

    def joined_after(self, xid: int) -> bool:
        """Whether the relation may have been outside a publication since this transaction."""
        return any(follows(joined, xid, self.next_xid) for joined in self.joined)


@dataclass(frozen=True, slots=True)
class RelationNow:
    """A relation in a reading of the catalog that is not beyond the LSN `lsn`."""

    schema: str
    name: str
    storage: str
    lsn: int


@dataclass(frozen=True, slots=True)
class PublishedColumn:
    """A column as the schemas bucket shows it."""

    name: str
    position: int
    data_type: str
    is_nullable: bool
    column_default: str | None
    # Only for a domain.
    base_type: str | None = None


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of a publication."""

    relation_id: int
    schema: str
    name: str
    replica_identity: str
    columns: tuple[str, ...]
    row_filter: str | None
    kind: str


@dataclass(frozen=True, slots=True)
class CatalogSnapshot:
    """Which transactions a reading saw, by the 32-bit ids that the stream names them by."""

    xmin: int
    xmax: int
    running: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str) -> CatalogSnapshot:
        """PostgreSQL's `xmin:xmax:running,…`."""
        xmin, xmax, running = text.split(":")
        # The stream has the lower 32 bits of an id; `precedes` masks the other two.
        return cls(
            int(xmin),
            int(xmax),
            frozenset(int(xid) & _XID_MASK for xid in running.split(",") if xid),
        )

    def sees(self, xid: int) -> bool:
        """Whether the reading includes a committed transaction; 0 is one of long ago."""
        if xid == 0 or precedes(xid, self.xmin):
            return True
        return precedes(xid, self.xmax) and xid not in self.running
