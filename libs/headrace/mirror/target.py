"""The port for a new target: what a mirror asks of the database that it writes.

Owns the steps, which are all that ever changes in a target. A target keeps rows and marks, and
makes what was written since the last commit visible all at once: with that, the mirror is
exactly-once.
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
    """The target can't take what it is given."""


class TargetAwayError(TargetError):
    """The target can't be reached now."""

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
    """Another mirror has opened the target since: what this one goes on from is not what the target
    holds.
    """

    remedy = "One mirror at a time writes to a target: stop one of them, or give it another target."

    def __init__(self, place: str) -> None:
        super().__init__(f"{place}: another mirror writes to it now")


class RowMissingError(TargetError):
    """A change names a row that the target does not have exactly once: the table is not what the
    source's is.
    """

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
    """The value that all rows have in a column that is added: in the contract's form, and as
    PostgreSQL's text.
    """

    value: Any
    text: str


@dataclass(frozen=True, slots=True)
class AlterTable:
    """Columns renamed (new name → old name), then dropped, added and retyped, until the table is as
    `after`.

    An added column is NULL in all rows, or has the value that `filled` names for it.
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

    A `where` that is the whole old row may be found by the table's key, where one row alone has it.
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
    """What of `where` finds the row in an index, and what is left to tell several rows apart that
    have it.
    """
    for names in table.finders:
        if set(names) <= where.keys():
            rest = {name: value for name, value in where.items() if name not in names}
            return {name: where[name] for name in names}, rest
    return where, {}


class Target(Protocol):
    """Three methods, called one at a time."""

    async def load(self) -> dict[str, str]:
        """Open (or open again), forget what was written and not committed; the marks of the last
        commit.

        Whoever had it open before, and still runs, must write nothing from here on
        (`TakenOverError`).
        """
        ...

    async def write(self, steps: Sequence[Step]) -> None:
        """Do these steps, in order; nobody sees them before the commit. `RowMissingError` where a
        row is not there.
        """
        ...

    async def commit(self, marks: Mapping[str, str | None]) -> None:
        """Keep these marks (None: remove it) together with everything written, or nothing of both."""
        ...


class TargetReading(Protocol):
    """A target at one moment, for `headrace verify`."""

    @property
    def marks(self) -> Mapping[str, str]:
        """The marks at that moment."""
        ...

    def rows(self, table: Table, columns: Sequence[Column]) -> AsyncIterator[list[tuple[Any, ...]]]:
        """All rows, some at a time, in no particular order, with values as a mirror in SQLite keeps
        them.
        """
        ...


class ReadableTarget(Target, Protocol):
    """A target that can be verified."""

    def reading(self, table: Table | None = None) -> AbstractAsyncContextManager[TargetReading]:
        """One consistent moment of it, while it goes on; `table` is the one whose rows will be
        read.
        """
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...


def target_of(url: str) -> ReadableTarget:
    """The target that an address names: `sqlite:///file` or `postgresql://…`."""
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" and separator and rest.startswith("/") and len(rest) > 1:
        from headrace.mirror.sqlite import SqliteTarget  # noqa: PLC0415  # only the driver that is used

        # As others have it: three slashes for a relative path, four for an absolute one.
        return SqliteTarget(rest[1:])
    if scheme in {"postgresql", "postgres"} and separator:
        from headrace.mirror.postgres import PostgresTarget  # noqa: PLC0415  # only the driver that is used

        return PostgresTarget(url)
    raise SettingError(
        f"--to {scheme}{separator}… names no target",
        remedy="Write sqlite:///local.db or postgresql://user@host/name.",
    )


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[ReadableTarget]:
    """That target, closed at the end."""
    target = target_of(url)
    try:
        yield target
    finally:
        await target.close()
