"""Whether a database can have the tables of a copy: their names and types there, and what it would
refuse.

Promises to write nothing, and not to disturb a mirror that writes to the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from headrace.errors import HeadraceError
from headrace.mirror.mirror_state import tables_of
from headrace.mirror.rules import CopyRules, Place, RuleError, name_in
from headrace.mirror.table import Phase, Table, TableState
from headrace.mirror.target import ForeignTableError, SamePlaceError, TargetError, target_of

# By scheme: the module that asks such a target, imported only if it is used, like its driver.
_CHECKS = {
    "postgresql": "headrace.mirror.postgres_check",
    "postgres": "headrace.mirror.postgres_check",
    "sqlite": "headrace.mirror.sqlite_check",
    "duckdb": "headrace.mirror.duckdb_check",
    "mariadb": "headrace.mirror.mariadb_check",
    "mysql": "headrace.mirror.mariadb_check",
}
CREATED = "would be created"
REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class TableCheck:
    """One table of the source in the target."""

    # Its name at the source, and in the target.
    source: str
    name: str
    # The mirror's next step with it, or its state.
    outcome: str
    # Each column with its type in the target.
    columns: tuple[str, ...] = ()
    # Columns whose type there lacks some of PostgreSQL's values: a row that has one is refused.
    limits: tuple[str, ...] = ()
    # The reason and the remedy of a refusal.
    why: str = ""


@dataclass(frozen=True, slots=True)
class TargetCheck:
    """What a target answered."""

    server: str
    tables: tuple[TableCheck, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetShape:
    """A table as the target would have it."""

    columns: Sequence[str]
    limits: Sequence[str] = field(default=())


# Whether the target has a relation of the table's name; what it would be, or a `TargetError`.
Exists = Callable[[Table], bool]
Shape = Callable[[Table], TargetShape]


def judged(
    tables: Iterable[Table], marks: Mapping[str, str], exists: Exists, shape: Shape
) -> tuple[TableCheck, ...]:
    """The outcome for each table of a target with these marks."""
    states = tables_of(marks)
    return tuple(_judged(table, states.get(table.token), exists, shape) for table in tables)


def _judged(table: Table, state: TableState | None, exists: Exists, shape: Shape) -> TableCheck:
    live = state.live if state is not None else None
    try:
        # The live table may have another name, by earlier rules.
        if (live is None or live.place != table.place) and exists(table):
            raise ForeignTableError(table)
        found = shape(table)
    except TargetError as error:
        return refusal(table, error)
    made = TableCheck(
        _source(table), ".".join(table.place), CREATED, tuple(found.columns), tuple(found.limits)
    )
    if state is None or live is None:
        return made
    outcome = "is followed"
    if state.rules != table.rules:
        outcome = "would be copied again, by other rules"
    elif state.phase is Phase.PARKED:
        outcome = f"is parked: {state.why}"
    elif state.phase is not Phase.FOLLOWING:
        outcome = "is copied again"
    return replace(made, outcome=outcome)


def _source(table: Table) -> str:
    return f"{table.schema}.{table.name}"


def refusal(table: Table, error: HeadraceError) -> TableCheck:
    """The outcome for a table that can't be in the target."""
    return TableCheck(_source(table), ".".join(table.place), REFUSED, why=str(error))


async def checked(
    to: str, options: Mapping[str, Any], tables: Iterable[Table], rules: CopyRules
) -> TargetCheck:
    """Ask a target about the source's tables; raises if no mirror could write to it at all."""
    scheme = to.partition("://")[0]
    target = target_of(to, options)
    wanted, excluded = _ruled(scheme, tables, rules)
    found: TargetCheck = await import_module(_CHECKS[scheme]).check(target, wanted)
    return replace(found, tables=(*found.tables, *excluded))


def _ruled(
    scheme: str, tables: Iterable[Table], rules: CopyRules
) -> tuple[list[Table], list[TableCheck]]:
    """The tables as a copy by these rules has them, and those that the rules exclude."""
    made: list[Table] = []
    refused: list[TableCheck] = []
    taken: dict[str, Place] = {}
    for table in tables:
        source = (table.schema, table.name)
        try:
            one = table.ruled(rules.of(*source))
        except RuleError as error:
            refused.append(refusal(table, error))
            continue
        other = taken.setdefault(name_in(scheme, one.place), source)
        if other == source:
            made.append(one)
        else:
            refused.append(refusal(one, SamePlaceError(other, source, one.place)))
    return made, refused
