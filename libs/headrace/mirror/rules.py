"""Rules of a copy: what its tables are called in the target, and which columns they have. Pure.

The rules of a table are stored with its state, so that each reader of a target knows them.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.contract.table_patterns import names_table
from headrace.errors import HeadraceError

Place = tuple[str, str]
DEFAULT_DESTINATION = "{schema}.{table}"
_PUBLIC = "public"
# Of a history's rows: the change, its position and the time of its commit; the columns whose
# values PostgreSQL did not send, and old values.
HISTORY_COLUMNS = (
    ("headrace_operation", "text"),
    ("headrace_lsn", "bigint"),
    ("headrace_seq", "bigint"),
    ("headrace_committed_at", "timestamp with time zone"),
    ("headrace_unchanged", "text"),
    ("headrace_old", "text"),
)


class DestinationError(HeadraceError):
    """The template of a copy's tables can't be used."""

    remedy = (
        "Write `schema.table` or `table` (of the schema public), in which {schema} and {table} "
        'stand for the names at the source: destination = "shop.{table}".'
    )


class RuleError(HeadraceError):
    """A table can't be copied by its rules."""


@dataclass(frozen=True, slots=True)
class TableRules:
    """The differences between a table and its copy."""

    # Its schema and name in the target; None: those of the source.
    place: Place | None = None
    # The columns that it has, if the source has them; None: all.
    columns: tuple[str, ...] | None = None
    # The column with the time at which a row was deleted; empty: deleted rows are removed.
    soft_delete: str = ""
    # Whether each change is a row.
    history: bool = False

    @property
    def added(self) -> tuple[tuple[str, str], ...]:
        """The columns that the source's table does not have, with their types."""
        if self.history:
            return HISTORY_COLUMNS
        if self.soft_delete:
            return ((self.soft_delete, "timestamp with time zone"),)
        return ()

    def keeps(self, column: str) -> bool:
        """Whether the copy has this column of the source."""
        return self.columns is None or column in self.columns


PLAIN = TableRules()
_TUPLES = ("place", "columns")


def rules_from(body: Mapping[str, Any] | None) -> TableRules:
    """The rules, as `asdict` and JSON left them; absent in the state of an earlier version."""
    if body is None:
        return PLAIN
    tuples = {name: None if body[name] is None else tuple(body[name]) for name in _TUPLES}
    return TableRules(**{**body, **tuples})


@dataclass(frozen=True, slots=True)
class NameTemplate:
    """A template such as `shop.{table}`, in two parts that dots in names can't blur."""

    schema: str
    table: str

    @classmethod
    def parsed(cls, text: str) -> NameTemplate:
        """Raises `DestinationError` for a template that names no table, or more than one."""
        parts = _parts(text)
        dots = [number for number, (plain, _) in enumerate(parts) if plain == "."]
        if len(dots) > 1:
            raise DestinationError(f"{text!r} has more than one dot")
        schema, table = [(_PUBLIC, "")], parts
        if dots:
            schema, table = parts[: dots[0]], parts[dots[0] + 1 :]
        if not schema or not table:
            raise DestinationError(f"{text!r} names no {'table' if schema else 'schema'}")
        return cls(*("".join(_template(*part) for part in some) for some in (schema, table)))

    def of(self, schema: str, table: str) -> Place:
        """The name in the target of a table of the source."""
        names = {"schema": schema, "table": table}
        return self.schema.format_map(names), self.table.format_map(names)


def _parts(text: str) -> list[tuple[str, str]]:
    """Texts and names of a template; each dot is a separate text."""
    found: list[tuple[str, str]] = []
    try:
        pieces = list(string.Formatter().parse(text))
    except ValueError as error:
        raise DestinationError(f"{text!r}: {error}") from error
    for plain, name, form, conversion in pieces:
        for number, some in enumerate(plain.split(".")):
            found += [(".", "")] * bool(number) + [(some, "")] * bool(some)
        if name is None:
            continue
        if name not in {"schema", "table"} or form or conversion:
            raise DestinationError(f"{text!r}: {{{name}}} is not {{schema}} or {{table}}")
        found.append(("", name))
    return found


def _template(plain: str, name: str) -> str:
    if name:
        return f"{{{name}}}"
    return plain.replace("{", "{{").replace("}", "}}")


@dataclass(frozen=True, slots=True)
class CopyRules:
    """The rules of all tables of a copy."""

    destination: str = DEFAULT_DESTINATION
    # The columns of tables, by pattern; the first pattern that fits applies.
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    soft_delete: str = ""
    history: bool = False
    _template: NameTemplate = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_template", NameTemplate.parsed(self.destination))

    def of(self, schema: str, table: str) -> TableRules:
        """The rules of a table of the source."""
        place = self._template.of(schema, table)
        kept = (
            names for pattern, names in self.columns.items() if names_table(pattern, schema, table)
        )
        return TableRules(
            place=None if place == (schema, table) else place,
            columns=next(kept, None),
            soft_delete=self.soft_delete,
            history=self.history,
        )


NO_RULES = CopyRules()


def name_in(scheme: str, place: Place) -> str:
    """The name of a table as a database of this kind compares it with others."""
    schema, name = place
    shown = f"{schema}.{name}"
    if scheme in {"sqlite", "mariadb", "mysql"}:
        shown = shown.removeprefix(f"{_PUBLIC}.")
    if scheme in {"sqlite", "duckdb"}:
        # They ignore the case of names.
        return shown.lower()
    return shown
