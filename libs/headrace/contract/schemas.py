"""Table schemas as consumers read them: schema events, the schemas bucket, and what changed. Pure.

The only authority for a table's version is the publisher's schema events (docs/contract.md). Names
and types come with the stream and are exact at their position in it; nullability and defaults come
from the catalog, as of the moment of reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from headrace.contract.exact import native
from headrace.contract.values import Converter
from headrace.errors import DecodeError

Change = dict[str, Any]

# The OIDs of types whose modifier only limits the length. A higher limit changes no value.
_VARCHAR = 1043
_VARBIT = 1562
_WIDENING_IS_FREE = frozenset({_VARCHAR, _VARBIT})


@dataclass(frozen=True, slots=True)
class Fill:
    """The value that adding a column gave to all existing rows: in the contract's form, and as
    text.
    """

    value: object
    text: str


def fill(missing: bytes | None, convert: Converter) -> Fill | None:
    """The catalog's value for rows older than a column; None if there is none, or none that is
    text.
    """
    if missing is None:
        return None
    try:
        return Fill(native(convert(missing)), missing.decode())
    except (DecodeError, UnicodeDecodeError):
        # Consumers copy the table if a column is `filled` and the value is unknown.
        return None


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """A column.

    `number` is its place in the table's history (0: unknown), `filled` whether adding it gave
    existing rows a value, `fill` that value if it is the same for all of them (not stored: it
    belongs to the moment of reading); `base_type` is the type that a domain is based on (None: no
    domain, or unknown).
    """

    name: str
    type_oid: int
    type_modifier: int
    data_type: str
    is_key: bool = False
    is_nullable: bool = True
    column_default: str | None = None
    number: int = 0
    filled: bool = False
    fill: Fill | None = field(default=None, compare=False)
    base_type: str | None = field(default=None, compare=False)

    def with_catalog_of(self, known: ColumnShape) -> ColumnShape:
        """This column with earlier facts that only the catalog has."""
        return replace(
            self,
            is_nullable=known.is_nullable,
            column_default=known.column_default,
            number=known.number,
        )

    def encode(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in self.__slots__ if name != "fill"}
        # Versions that don't know it can read the rest.
        return {name: value for name, value in kept.items() if (name, value) != ("base_type", None)}


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table's shape in a part of the stream.

    `membership` distinguishes a membership in the publication from a later one, `last_number` is
    the highest number that any column ever had (0: unknown), `publication` the content of the
    publication and the version of its definition ("": unknown), `definitions` those of the columns'
    types ("": unknown, or they have none).
    """

    schema: str
    name: str
    relation_id: int
    replica_identity: str
    primary_key: tuple[str, ...]
    membership: int
    columns: tuple[ColumnShape, ...]
    last_number: int = field(default=0, compare=False)
    publication: str = field(default="", compare=False)
    definitions: str = field(default="", compare=False)

    @property
    def seen(self) -> bool:
        """Whether the table was still in the catalog when it was read."""
        return any(column.number for column in self.columns)

    def with_catalog_of(self, known: TableShape) -> TableShape:
        """This shape of a table that is no longer in the catalog, with earlier facts about the
        table.
        """
        before = {column.name: column for column in known.columns}
        columns = tuple(
            column.with_catalog_of(before.get(column.name, column)) for column in self.columns
        )
        # A key with a column that this shape lacks says nothing about its rows.
        if {column.name for column in columns}.issuperset(known.primary_key):
            key = known.primary_key
        else:
            key = ()
        return replace(
            self, primary_key=self.primary_key or key, membership=known.membership, columns=columns
        )

    def same_in_stream(self, other: TableShape) -> bool:
        """Whether rows of both are read the same way and keep their meaning: nullability and
        defaults don't count.
        """
        return self._in_stream() == other._in_stream() and all(
            # A number of 0 is unknown, and equals any: an old shape must not look changed for it.
            mine.number == its.number or not (mine.number and its.number)
            for mine, its in zip(self.columns, other.columns, strict=True)
        )

    def _in_stream(self) -> tuple[object, ...]:
        columns = tuple((c.name, c.type_oid, c.type_modifier, c.is_key) for c in self.columns)
        table = (self.schema, self.name, self.relation_id)
        return (*table, self.replica_identity, self.primary_key, self.membership, columns)

    def encode(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "columns": [column.encode() for column in self.columns]}

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> TableShape:
        try:
            columns = tuple(ColumnShape(**column) for column in value["columns"])
            # Fields that an earlier version did not store have their defaults.
            fields = {name: value[name] for name in cls.__slots__ if name in value}
            return cls(**{**fields, "columns": columns, "primary_key": tuple(value["primary_key"])})
        except (KeyError, TypeError) as error:
            raise DecodeError(f"malformed table shape: {error}") from error

    def shown_columns(self) -> list[dict[str, Any]]:
        """The contract's `columns`."""
        return [
            {
                "name": column.name,
                "position": position,
                "data_type": column.data_type,
                "is_nullable": column.is_nullable,
                "column_default": column.column_default,
                **({"base_type": column.base_type} if column.base_type else {}),
            }
            for position, column in enumerate(self.columns, start=1)
        ]


def event(
    shape: TableShape, *, source: str, version: int, changes: list[Change], resync: bool
) -> dict[str, Any]:
    """The body of a schema event, without the fields of every event (subject, msg_id, lsn, tx)."""
    return {
        "table": shape.name,
        "operation": "SCHEMA",
        "schema": shape.schema,
        "source": source,
        "relation_id": shape.relation_id,
        "version": version,
        "columns": shape.shown_columns(),
        "primary_key": list(shape.primary_key),
        "replica_identity": shape.replica_identity,
        "identity": [column.name for column in shape.columns if column.is_key],
        "changes": changes,
        "resync": resync,
    }


def without_fills(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A schema event that is too large for a message: without the new column's value, consumers
    copy the table instead.
    """
    changes = [
        {key: value for key, value in change.items() if key not in {"filled", "filled_text"}}
        for change in payload["changes"]
    ]
    return {
        **payload,
        "changes": changes,
        "resync": payload["resync"] or changes != payload["changes"],
    }


def renamed(direction: str, schema: str, name: str) -> Change:
    """A table's new (`to`) or former (`from`) name: readable, and in two parts that dots can't
    blur.
    """
    parts = {f"{direction}_schema": schema, f"{direction}_table": name}
    return {"change": "table_renamed", direction: f"{schema}.{name}", **parts}


def with_keys_of(shape: TableShape, known: TableShape) -> TableShape:
    """A shape read from the catalog, with the stream's key flags: the catalog has its own rules for
    them.
    """
    flags = {column.name: column.is_key for column in known.columns}
    return replace(
        shape,
        columns=tuple(
            replace(column, is_key=flags.get(column.name, column.is_key))
            for column in shape.columns
        ),
    )


def differences(old: TableShape, new: TableShape) -> tuple[list[Change], bool]:
    """The differences, and whether a mirror must bootstrap the table because no row event can
    express them.
    """
    changes: list[Change] = []
    resync = False
    if (old.schema, old.name) != (new.schema, new.name):
        changes.append(renamed("from", old.schema, old.name))
        resync = True
    # A table that was dropped and created again: no event removed the old one's rows.
    if old.relation_id != new.relation_id:
        changes.append({"change": "table_replaced"})
        resync = True
    else:
        publication_changes, resync_publication = _publication_differences(old, new)
        changes += publication_changes
        resync = resync or resync_publication
    column_changes, columns_resync = _column_differences(old, new)
    changes += column_changes
    # Neither another key nor another replica identity changes a row, so neither needs a copy.
    if old.primary_key != new.primary_key:
        changes.append(
            {"change": "key_changed", "from": list(old.primary_key), "to": list(new.primary_key)}
        )
    if old.replica_identity != new.replica_identity:
        changes.append(
            {
                "change": "replica_identity_changed",
                "from": old.replica_identity,
                "to": new.replica_identity,
            }
        )
    return changes, resync or columns_resync


def _publication_differences(old: TableShape, new: TableShape) -> tuple[list[Change], bool]:
    """Another membership, or another definition of the publication: changes in between were not
    published.
    """
    # Rows that changed between two memberships have no events.
    joined = old.membership != new.membership
    # Unknown on one side proves nothing: an earlier version did not store it.
    altered = bool(old.publication and new.publication) and old.publication != new.publication
    if not (joined or altered):
        return [], False
    change: Change = {"change": "publication_changed"}
    if new.publication:
        change["publishes"] = _published(new.publication)
    # A publication that only lost operations has published every change so far: another copy of the
    # table would gain nothing.
    narrowed = set(_published(new.publication)) < set(_published(old.publication))
    return [change], joined or not narrowed


def _published(publication: str) -> list[str]:
    return [operation for operation in publication.partition("/")[0].split(",") if operation]


def _column_differences(old: TableShape, new: TableShape) -> tuple[list[Change], bool]:
    changes: list[Change] = []
    resync = False
    pairs = _pair(old, new)
    kept = set(pairs.values())
    # A column whose number isn't known may have been renamed, which looks like a drop and an
    # addition.
    lost_track = any(column.number == 0 for column in old.columns if column not in kept)
    accounted = _accounted(old, new)
    names_before = {column.name for column in old.columns}
    changes += [
        {"change": "column_dropped", "column": c.name} for c in old.columns if c not in kept
    ]
    changes += _renames(old, new, pairs)
    for column in new.columns:
        before_or_none = pairs.get(column)
        if before_or_none is None:
            # A column that took another's name, or may be another one renamed: nobody can say what
            # rows contain now.
            # A column that was there and not published, such as a generated one, has values.
            was_there = old.relation_id == new.relation_id and 0 < column.number <= old.last_number
            unclear = column.name in names_before or lost_track or was_there
            given = _given(column) if accounted and not unclear else {}
            changes.append(
                {
                    "change": "column_added",
                    "column": column.name,
                    "data_type": column.data_type,
                    **given,
                }
            )
            resync = resync or unclear or (column.filled and not given)
            continue
        column_changes, rewritten = _one_column(before_or_none, column)
        changes += column_changes
        resync = resync or rewritten
    return changes, resync


def _renames(
    old: TableShape, new: TableShape, pairs: Mapping[ColumnShape, ColumnShape]
) -> list[Change]:
    """Renames in an order in which each new name is free; cycles use a temporary name."""
    left = {
        before.name: column.name for column, before in pairs.items() if before.name != column.name
    }
    names = {column.name for column in (*old.columns, *new.columns)}
    changes: list[Change] = []
    while left:
        name = next((name for name, wanted in left.items() if wanted not in left), None)
        if name is None:
            name = next(iter(left))
            # Columns that exchanged their names: one of them takes a free name first.
            spare = next(spare for n in count(1) if (spare := f"headrace_{n}") not in names)
            names.add(spare)
            left[spare] = left[name]
            target = spare
        else:
            target = left[name]
        del left[name]
        changes.append({"change": "column_renamed", "from": name, "column": target})
    return changes


def _given(column: ColumnShape) -> Change:
    """The value that all rows have in this column which were there before it."""
    if column.fill is None:
        return {}
    return {"filled": column.fill.value, "filled_text": column.fill.text}


def _accounted(old: TableShape, new: TableShape) -> bool:
    """Whether every column that was ever added since is one of the new shape's.

    The catalog may be ahead of the stream: a column of this name may have been added, dropped and
    added again since the current position, and then the value in the catalog is not that of the
    existing rows.
    """
    if old.relation_id != new.relation_id or not new.last_number:
        return False
    # Without a stored number the highest known one is a lower bound: then more columns have to be
    # accounted for, never fewer.
    before = old.last_number or max((column.number for column in old.columns), default=0)
    return {column.number for column in new.columns}.issuperset(
        range(before + 1, new.last_number + 1)
    )


def _pair(old: TableShape, new: TableShape) -> dict[ColumnShape, ColumnShape]:
    """Maps each new column to the old one: by its number in the table, else by its name."""
    # Numbers belong to one relation: a table that was dropped and created again starts at 1.
    same_table = old.relation_id == new.relation_id
    by_number = {column.number: column for column in old.columns if column.number and same_table}
    by_name = {column.name: column for column in old.columns}
    pairs = {}
    for column in new.columns:
        before = by_number.get(column.number) if column.number else None
        namesake = by_name.get(column.name)
        if (
            # A name decides only where a number is unknown. A column with the same name and another
            # number was dropped and added again.
            before is None
            and namesake is not None
            and not (same_table and column.number and namesake.number)
        ):
            before = namesake
        if before is not None:
            pairs[column] = before
    return pairs


def _one_column(before: ColumnShape, after: ColumnShape) -> tuple[list[Change], bool]:
    changes: list[Change] = []
    rewritten = False
    if (before.type_oid, before.type_modifier) != (after.type_oid, after.type_modifier):
        changes.append(
            {
                "change": "column_retyped",
                "column": after.name,
                "from": before.data_type,
                "to": after.data_type,
            }
        )
        # Any other change of a type may rewrite rows, which the stream does not show
        # (docs/adr/0008).
        rewritten = not _free(before, after)
    if (before.is_nullable, before.column_default) != (after.is_nullable, after.column_default):
        changes.append({"change": "column_constraints_changed", "column": after.name})
    return changes, rewritten


def _free(before: ColumnShape, after: ColumnShape) -> bool:
    """Widening a varchar keeps every value as it is."""
    # A modifier of -1 means no limit, so it is wider than any other.
    same = before.type_oid == after.type_oid and after.type_oid in _WIDENING_IS_FREE
    return same and (after.type_modifier == -1 or -1 < before.type_modifier <= after.type_modifier)
