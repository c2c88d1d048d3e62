"""The interface of a target: what a mirror needs from the database that it writes.

Owns the steps, which are the only changes of a target. A target stores rows and marks, and makes
everything written since the last commit visible together: that makes the mirror exactly-once.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.errors import HeadraceError, SettingError
from headrace.mirror.table import Column, Table


class TargetError(HeadraceError):
    """The target can't store what it is given."""


class TargetAwayError(TargetError):
    """The target can't be reached at the moment."""

    retry = True
    remedy = "The mirror tries again; check the server that --to names."


class CommitRefusedError(TargetError):
    """The target takes every step and refuses to commit them: by a deferred constraint or trigger
    that somebody added there.
    """

    retry = True
    remedy = "The mirror tries again; remove the deferred constraint or trigger from the target."

    def __init__(self, message: str, table_name: tuple[str, str] | None) -> None:
        """`table_name` is the schema and name of the table, where the target names one."""
        super().__init__(message)
        self.table_name = table_name


class TakenOverError(TargetError):
    """Another mirror has opened the target since: its content is no longer what this one continues
    from.
    """

    remedy = (
        "Only one mirror at a time writes to a target: stop one of them, or use another target."
    )

    def __init__(self, place: str) -> None:
        super().__init__(f"{place}: another mirror is writing to it")


class RowMissingError(TargetError):
    """A change names a row that the target does not have exactly once: table and source differ."""

    def __init__(self, table: Table, what: str) -> None:
        super().__init__(
            f"{table.schema}.{table.name}: {what}", remedy="The mirror bootstraps the table again."
        )
        self.table = table


@dataclass(frozen=True, slots=True)
class CreateTable:
    """An empty table; one that is there under the same name (and the same `staging`) goes first."""

    table: Table


@dataclass(frozen=True, slots=True)
class DropTable:
    """The table goes, if it is there."""

    table: Table


@dataclass(frozen=True, slots=True)
class Filled:
    """The value of an added column in all existing rows: in the contract's form, and as
    PostgreSQL's text.
    """

    value: Any
    text: str


@dataclass(frozen=True, slots=True)
class AlterTable:
    """Columns renamed (new name → old name), then dropped, added and retyped, until the table is as
    `after`.

    An added column is NULL in all rows, or has its value in `filled`.
    """

    before: Table
    after: Table
    renamed: Mapping[str, str] = field(default_factory=dict)
    filled: Mapping[str, Filled] = field(default_factory=dict)

    @property
    def table(self) -> Table:
        return self.before


@dataclass(frozen=True, slots=True)
class SwapTables:
    """The staging table takes the place of the live one of its name, if there is one."""

    table: Table


@dataclass(frozen=True, slots=True)
class InsertRows:
    """Rows, in the contract's forms of values; a column that a row lacks is NULL."""

    table: Table
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class UpdateRow:
    """The one row that has the values of `where` gets those of `data`; of several equal ones, any.

    A `where` that is the whole old row may be found by the table's key, if only one row has that
    key.
    """

    table: Table
    where: Mapping[str, Any]
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteRow:
    """The one row that has the values of `where` goes; of several equal ones, any."""

    table: Table
    where: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TruncateTable:
    """All rows go."""

    table: Table


Step = (
    CreateTable
    | DropTable
    | AlterTable
    | SwapTables
    | InsertRows
    | UpdateRow
    | DeleteRow
    | TruncateTable
)


def split(table: Table, where: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The part of `where` that finds the row in an index, and the part that distinguishes several
    matches.
    """
    for names in table.finders:
        if set(names) <= where.keys():
            rest = {name: value for name, value in where.items() if name not in names}
            return {name: where[name] for name in names}, rest
    return where, {}


class Target(Protocol):
    """Three methods, called one at a time."""

    async def load(self) -> dict[str, str]:
        """Open (or reopen), discard uncommitted writes; returns the marks of the last commit.

        A process that had it open before, and still runs, must write nothing from here on
        (`TakenOverError`).
        """
        ...

    async def write(self, steps: Sequence[Step]) -> None:
        """Execute these steps in order; nobody sees them before the commit. `RowMissingError` if a
        row doesn't exist.
        """
        ...

    async def commit(self, marks: Mapping[str, str | None]) -> None:
        """Store these marks (None: remove it) together with everything written, atomically."""
        ...


class TargetReading(Protocol):
    """A target at one moment, for `headrace verify`."""

    @property
    def marks(self) -> Mapping[str, str]:
        """The marks at that moment."""
        ...

    def rows(self, table: Table, columns: Sequence[Column]) -> AsyncIterator[list[tuple[Any, ...]]]:
        """All rows, some at a time, in no particular order, with values as a mirror in SQLite
        stores them.
        """
        ...


class ReadableTarget(Target, Protocol):
    """A target that can be verified."""

    def reading(self, table: Table | None = None) -> AbstractAsyncContextManager[TargetReading]:
        """Open one consistent moment of it, while it continues; `table` is the one whose rows will
        be read.
        """
        ...

    async def close(self) -> None:
        """Close it."""
        ...


def target_of(url: str) -> ReadableTarget:
    """The target of an address: `sqlite:///file` or `postgresql://…`."""
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" and separator and rest.startswith("/") and len(rest) > 1:
        # Import only the driver that is used.
        from headrace.mirror.sqlite import SqliteTarget  # noqa: PLC0415

        # The usual form: three slashes for a relative path, four for an absolute one.
        return SqliteTarget(rest[1:])
    if scheme in {"postgresql", "postgres"} and separator:
        # Import only the driver that is used.
        from headrace.mirror.postgres import PostgresTarget  # noqa: PLC0415

        return PostgresTarget(url)
    raise SettingError(
        f"--to {scheme}{separator}… is not a valid target",
        remedy="Write sqlite:///local.db or postgresql://user@host/name.",
    )


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[ReadableTarget]:
    """Opens that target, and closes it at the end."""
    target = target_of(url)
    try:
        yield target
    finally:
        await target.close()
