"""Prepared statements and portals of a session, and how the front runs those that are its own.

A statement without a plan is the private PostgreSQL's. A plan writes the messages of its results
to the client, but not what begins or ends an exchange.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from headrace.sql.query_tree import Node
from headrace.sql.relations import LakeRelation
from headrace.sql.statements import Fetch, Piece
from headrace.sql.translation import RequiredPrivilege, Translation, required_privileges
from headrace.sql.wire import TEXT, Parse, WireColumn
from headrace.sql_server.lake_run import Result
from headrace.sql_server.problems import StatementRefusedError, unsupported

if TYPE_CHECKING:
    from headrace.sql_server.exact_run import ExactRows
    from headrace.sql_server.held_rows import HeldRows

# ACL_SELECT in PostgreSQL's masks of rights.
_SELECT: Final = 2


def needs_of(node: Node) -> tuple[RequiredPrivilege, ...]:
    """The rights that a query needs; all but reading is refused."""
    found = required_privileges(node)
    if any(each.privileges & ~_SELECT for each in found):
        raise unsupported("locking or changing rows")
    return tuple(each for each in found if each.privileges)


@dataclass(frozen=True, slots=True)
class Ready:
    """A query that may run now: its session's settings, and its translation."""

    settings: Mapping[str, str]
    translation: Translation


@dataclass(slots=True)
class OpenRows:
    """A result that was not read to its end, and what its rows need to become messages: of DuckDB,
    of the private PostgreSQL, or kept as messages.
    """

    query: LakeQuery
    types: Sequence[int]
    values: Sequence[bytes | None]
    ready: Ready | None = None
    result: Result | None = None
    exact: ExactRows | HeldRows | None = None
    sent: int = 0


class Plan(Protocol):
    """What runs in the front."""

    async def execute(self, portal: Portal, rows_max: int) -> None:
        """Write the rows and the end of a statement."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """When the names of a statement were looked up. After a command of the session or another
    definition of tables they may lead to other relations, and after another transaction a view
    may read something else. The last two fields are how a text is read.
    """

    commands: int
    definitions: int
    transactions: int
    standard_strings: bool
    encoding: bytes


@dataclass(slots=True)
class Statement:
    """A prepared statement. `columns` is None if it gives no rows; without a piece, its text is not
    one statement.
    """

    piece: Piece | None
    parameters: tuple[int, ...] = ()
    columns: tuple[WireColumn, ...] | None = None
    plan: Plan | None = None
    # COPY has rows and no row description.
    describes_rows: bool = True
    looked_up: LookUp | None = None
    # As the client sent it; PREPARE has none.
    parse: Parse | None = None


@dataclass(slots=True)
class Portal:
    """A statement with its parameters, and how far its rows were read."""

    statement: Statement
    # As the private PostgreSQL sends them, in binary form.
    values: tuple[bytes | None, ...] = ()
    forms: tuple[int, ...] = ()
    rows: OpenRows | None = None
    # A cursor WITH HOLD: declared in the open transaction, and once that has committed.
    holds: bool = False
    held: bool = False
    # Declared without a transaction block, after the last Sync: an error takes it away.
    fresh: bool = False

    @property
    def columns(self) -> tuple[WireColumn, ...]:
        """The result's columns."""
        return self.statement.columns or ()

    @property
    def column_forms(self) -> tuple[int, ...]:
        """A form for each column."""
        return self.forms or (TEXT,) * len(self.columns)


@dataclass(frozen=True, slots=True)
class TranslationKey:
    """The inputs of a translation besides the tree and the tables: the session's settings, whether
    64 bits were enough so far, and the digits of each numeric parameter that is not null.
    """

    utc: bool
    iso_dates: bool
    narrow: bool
    numerics: tuple[tuple[int, tuple[int, int]], ...]


@dataclass(slots=True)
class LakeQuery:
    """A query of the lake's tables: its tree, and the tables as it was analyzed."""

    node: Node
    needs: tuple[RequiredPrivilege, ...]
    relids: frozenset[int]
    shapes: Mapping[int, tuple[object, ...]]
    text: bytes
    # The tree as it was sent.
    tree: bytes
    # Whether PostgreSQL's planner could raise an error that the rows don't decide.
    folds: bool
    # Whether all its numbers have fitted into 64 bits so far.
    narrow: bool = True
    _kept: tuple[Mapping[int, LakeRelation], TranslationKey, Translation] | None = None

    def translation(
        self, relations: Mapping[int, LakeRelation], key: TranslationKey
    ) -> Translation | None:
        """The last translation, if it was for these tables, settings and digits."""
        # By identity: each cut has its own relations, and comparing them all would cost more.
        if self._kept is None or self._kept[0] is not relations or self._kept[1] != key:
            return None
        return self._kept[2]

    def keep(
        self, relations: Mapping[int, LakeRelation], key: TranslationKey, found: Translation
    ) -> None:
        """Keep a translation for the next execution."""
        self._kept = (relations, key, found)


def shape(relation: LakeRelation | None) -> tuple[object, ...]:
    """The facts of a table on which a tree depends; empty if there is none."""
    if relation is None:
        return ()
    return tuple((each.number, each.type_oid, each.modifier) for each in relation.columns)


_FORWARD: Final[Mapping[tuple[str, ...], int]] = {
    (): 1,
    ("NEXT",): 1,
    ("FORWARD",): 1,
    ("ALL",): 0,
    ("FORWARD", "ALL"): 0,
}


def rows_of(fetch: Fetch) -> int:
    """How many rows a FETCH or MOVE takes; 0 for all that are left."""
    words: Sequence[str] = fetch.direction
    known = _FORWARD.get(tuple(words))
    if known is not None:
        return known
    if words[:1] in (("FORWARD",), ("RELATIVE",)):
        words = words[1:]
    # 0 reads the current row again, which goes back.
    if len(words) == 1 and words[0].isdigit() and int(words[0]):
        return int(words[0])
    raise backwards()


def backwards() -> StatementRefusedError:
    """A refusal to go back."""
    return unsupported("a cursor that doesn't only go forward", "Declare another cursor.")
