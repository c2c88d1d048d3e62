"""The interface of a target: what a mirror needs from the database that it writes.

Owns the steps, which are the only changes of a target. A target stores rows and marks, and makes
everything written since the last commit visible together: that makes the mirror exactly-once.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from headrace.errors import HeadraceError, SettingError
from headrace.extras import MissingPackageError
from headrace.mirror.rules import Place
from headrace.mirror.table import Column, Table


class TargetError(HeadraceError):
    """The target can't store what it is given."""


class TargetAwayError(TargetError):
    """The target can't be reached at the moment."""

    retry = True
    remedy = "The mirror tries again; check the server that --to names."


class CommitRefusedError(TargetError):
    """The target accepts all steps and then refuses to commit them, because of a deferred
    constraint or trigger that someone added there.
    """

    retry = True
    remedy = "The mirror tries again; remove the deferred constraint or trigger from the target."

    def __init__(self, message: str, table_name: tuple[str, str] | None) -> None:
        """`table_name` is the schema and name of the table, where the target names one."""
        super().__init__(message)
        # The schema and name of the table; None if the target names none.
        self.table_name = table_name


class TakenOverError(TargetError):
    """Another mirror has opened the target, so this one must not continue from its content."""

    remedy = (
        "Only one mirror at a time writes to a target: stop one of them, or use another target."
    )

    def __init__(self, place: str) -> None:
        super().__init__(f"{place}: another mirror is writing to it")


class ForeignTableError(TargetError):
    """The target has a table of this name that no mirror or replay created."""

    remedy = "Rename or drop it there, or use another target."

    def __init__(self, table: Table) -> None:
        super().__init__(f"{'.'.join(table.place)} exists there already, with other content")


class SamePlaceError(TargetError):
    """Two of the source's tables would be one table of the target."""

    remedy = (
        "Put {schema} or {table} into the sink's `destination`, or select tables so that each "
        "target contains only one of them."
    )

    def __init__(self, one: Place, other: Place, place: Place) -> None:
        super().__init__(f"{'.'.join(one)} and {'.'.join(other)} would both be {'.'.join(place)}")


NOT_ONE = "a change of a row that the target doesn't have exactly once"
NOT_INSERTED = "a trigger or a rule kept inserted rows out"


class RowMissingError(TargetError):
    """The target does not contain the row of a change exactly once: it differs from the source."""

    def __init__(self, table: Table, what: str) -> None:
        super().__init__(
            f"{table.schema}.{table.name}: {what}", remedy="The mirror bootstraps the table again."
        )
        # The table that the mirror copies again.
        self.table = table


@dataclass(frozen=True, slots=True)
class CreateTable:
    """Create an empty table, in place of an existing one with this name and this `staging`.

    Without `replaces`, the target must refuse if readers see a table of this name: it is not the
    mirror's.
    """

    table: Table
    replaces: bool = True


@dataclass(frozen=True, slots=True)
class DropTable:
    """Drop the table, if it exists."""

    table: Table


@dataclass(frozen=True, slots=True)
class Filled:
    """The value of an added column in all existing rows."""

    # In the contract's form.
    value: Any
    # As PostgreSQL's text.
    text: str


@dataclass(frozen=True, slots=True)
class AlterTable:
    """Rename columns, then drop, add and retype columns, until the table has the shape `after`."""

    before: Table
    after: Table
    # Renamed columns: the old name of each new name.
    renamed: Mapping[str, str] = field(default_factory=dict)
    # The values of added columns; an added column without one is NULL in all rows.
    filled: Mapping[str, Filled] = field(default_factory=dict)

    @property
    def table(self) -> Table:
        """The table as it is before the step."""
        return self.before


@dataclass(frozen=True, slots=True)
class SwapTables:
    """Replace the live table of this name, if it exists, by its staging table; `replaces` as in
    `CreateTable`.
    """

    table: Table
    replaces: bool = True


@dataclass(frozen=True, slots=True)
class InsertRows:
    """Insert rows, with values in the contract's forms; a column that a row lacks is NULL."""

    table: Table
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class UpdateRow:
    """Update the row that has the values of `where` with those of `data`.

    If several rows are equal, any one of them will do. If `where` is the whole old row, the target
    may find it by the table's key, provided that only one row has this key.
    """

    table: Table
    where: Mapping[str, Any]
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteRow:
    """Delete the row that has the values of `where`; any one of them, if several rows are equal."""

    table: Table
    where: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TruncateTable:
    """Delete all rows; if `at` is a time, mark those that are not marked as deleted."""

    table: Table
    at: str | None = None


@dataclass(frozen=True, slots=True)
class RemoveSoftDeleted:
    """Remove the rows that are marked as deleted and have the key of one of these rows."""

    table: Table
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class CarryOver:
    """Copy to a staging table what only `before`, the table that it replaces, has: rows without one
    of their key in the copy. Those that are not marked as deleted get the mark `at`.

    Without a key, only marked rows; of a history, all rows.
    """

    table: Table
    before: Table
    at: str

    @property
    def columns(self) -> list[Column]:
        """The columns that both have, as the staging table has them."""
        there = {column.name for column in self.before.columns}
        return [column for column in self.table.columns if column.name in there]


# One change of a target.
Step = (
    CreateTable
    | DropTable
    | AlterTable
    | SwapTables
    | InsertRows
    | UpdateRow
    | DeleteRow
    | TruncateTable
    | RemoveSoftDeleted
    | CarryOver
)


def split(table: Table, where: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The part of `where` that finds the row in an index, and the part that distinguishes several
    matches.
    """
    for names in table.finders:
        if set(names) <= where.keys():
            # A marked row is never the one that a change is about.
            found = [*names, *(name for name in where if name == table.rules.soft_delete)]
            rest = {name: value for name, value in where.items() if name not in found}
            return {name: where[name] for name in found}, rest
    return where, {}


def finds_one(
    table: Table, where: Mapping[str, Any], named: Mapping[str, Any], rest: Mapping[str, Any]
) -> bool:
    """Whether `named` must find exactly one row: it is a key, and the source sent no more than it.

    If the key is the whole row, a deferrable one may belong to several equal rows.
    """
    return named is not where and not rest and len(named) < len(table.columns)


class Target(Protocol):
    """The database that a mirror writes to: three methods, called one at a time.

    A target that can't be reached raises `TargetAwayError`, and the mirror tries again. Any other
    `TargetError` concerns the table of the step.
    """

    async def load(self) -> dict[str, str]:
        """Open the target (again), discard uncommitted writes, and return the marks of the last
        commit.

        A process that opened it earlier must be unable to write from then on: its next commit
        raises `TakenOverError`.
        """
        ...

    async def write(self, steps: Sequence[Step]) -> None:
        """Execute these steps in order; readers must not see them before the commit.

        Raises `RowMissingError` if a row to update or delete doesn't exist exactly once.
        """
        ...

    async def commit(self, marks: Mapping[str, str | None]) -> None:
        """Store these marks together with everything written, atomically; remove marks that are
        None.
        """
        ...


class TargetReading(Protocol):
    """A target at one moment, for `headrace verify`."""

    @property
    def marks(self) -> Mapping[str, str]:
        """The marks at that moment."""
        ...

    def rows(self, table: Table, columns: Sequence[Column]) -> AsyncIterator[list[tuple[Any, ...]]]:
        """Return all rows, some at a time and in any order, with values as a mirror in SQLite
        stores them.
        """
        ...


class ReadableTarget(Target, Protocol):
    """A target that `headrace verify` can read."""

    def reading(self, table: Table | None = None) -> AbstractAsyncContextManager[TargetReading]:
        """Open one consistent moment of the target, while the mirror continues to write.

        `table` is the table whose rows will be read.
        """
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...


# By scheme: module and class of the target; a built-in one is imported only if it is used, because
# its driver may not be installed.
_SERVERS = {
    "postgresql": ("headrace.mirror.postgres", "PostgresTarget"),
    "postgres": ("headrace.mirror.postgres", "PostgresTarget"),
    "mariadb": ("headrace.mirror.mariadb", "MariadbTarget"),
    "mysql": ("headrace.mirror.mariadb", "MariadbTarget"),
}
_FILES = {
    "sqlite": ("headrace.mirror.sqlite", "SqliteTarget"),
    "duckdb": ("headrace.mirror.duckdb", "DuckdbTarget"),
}


def target_of(url: str, options: Mapping[str, Any] | None = None) -> ReadableTarget:
    """The target of an address, such as `sqlite:///file` or `postgresql://…`; `options` are its
    own.
    """
    scheme, separator, rest = url.partition("://")
    if scheme in _FILES and separator and rest.startswith("/") and len(rest) > 1:
        # The usual form: three slashes for a relative path, four for an absolute one.
        return _made(_FILES[scheme], rest[1:], options)
    if scheme in _SERVERS and separator:
        return _made(_SERVERS[scheme], url, options)
    raise SettingError(
        f"{scheme}{separator}{'…' if separator else ''} is not a valid target",
        remedy=(
            "Write sqlite:///local.db, duckdb:///local.duckdb, postgresql://user@host/name or "
            "mariadb://user@host/name."
        ),
    )


def _made(
    place: tuple[str, str], address: str, options: Mapping[str, Any] | None
) -> ReadableTarget:
    module, name = place
    try:
        # Imported by name, because its driver may be missing in installations that don't use it.
        kind = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        extra = module.rpartition(".")[2]
        raise MissingPackageError(str(error.name).partition(".")[0], extra) from error
    try:
        made: ReadableTarget = kind(address, **(options or {}))
    # The constructor's parameters are the list of options.
    except TypeError as error:
        given = ", ".join(sorted(options or {}))
        raise SettingError(
            f"this target does not have all of the options {given}",
            remedy="Leave out those that its page does not name.",
        ) from error
    return made


@contextlib.asynccontextmanager
async def opened(
    url: str, options: Mapping[str, Any] | None = None
) -> AsyncIterator[ReadableTarget]:
    """Open the target of an address, such as `sqlite:///file`, and close it at the end.

    Raises `SettingError` for an address that no target has.
    """
    target = target_of(url, options)
    try:
        yield target
    finally:
        await target.close()
