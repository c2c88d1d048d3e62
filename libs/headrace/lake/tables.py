"""A table of the source as the lake knows it, and how a new shape changes its schema. Pure.

Columns keep their field IDs for as long as they exist, even if they are renamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import orjson
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StringType

from headrace.archive.metadata import ColumnInfo, TableInfo
from headrace.lake.catalog import TableName
from headrace.lake.column_types import ITEM_EXACT, iceberg_type
from headrace.lsn import format_lsn, parse_lsn

SOURCE_PROPERTY: Final = "headrace.source"
TABLE_PROPERTY: Final = "headrace.table"
"""The properties of a table's metadata: the slot of the suite that made it, and the `LakeTable`."""

# A list's element has a separate ID.
_IDS_PER_COLUMN = 2


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column of the source and its field ID in the lake."""

    info: ColumnInfo
    field_id: int


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table of the source as the lake has it."""

    name: TableName
    relation_id: int
    columns: tuple[LakeColumn, ...]
    key: tuple[str, ...]
    # The LSN of the copy that it began with: earlier changes are in it.
    from_lsn: int
    # The ID of `_headrace_exact`.
    exact_id: int
    # The highest field ID that any column ever had.
    last_id: int

    @property
    def infos(self) -> tuple[ColumnInfo, ...]:
        """The source's columns."""
        return tuple(column.info for column in self.columns)

    @property
    def unique_key(self) -> tuple[str, ...]:
        """The key's columns; none if the key is the whole row, which needs not be unique."""
        # With REPLICA IDENTITY FULL, "the key" is every column, and equal rows may exist.
        if {info.name for info in self.infos} <= set(self.key):
            return ()
        return self.key

    def field_id(self, name: str) -> int:
        """A column's field ID."""
        return next(column.field_id for column in self.columns if column.info.name == name)

    def schema(self, schema_id: int) -> Schema:
        """The table's Iceberg schema."""
        fields = [
            NestedField(
                column.field_id,
                column.info.name,
                _stored_type(column),
                required=False,
                doc=column.info.type_name,
            )
            for column in self.columns
        ]
        # Iceberg numbers a map's keys and values, too; `last_id` counts them.
        texts = MapType(self.exact_id + 1, StringType(), self.exact_id + 2, StringType())
        return Schema(
            *fields,
            NestedField(
                self.exact_id,
                ITEM_EXACT,
                texts,
                required=False,
                doc="PostgreSQL's text of values that their columns can't hold",
            ),
            schema_id=schema_id,
        )

    def encode(self) -> dict[str, object]:
        """As a cut stores it."""
        return {
            "relation_id": self.relation_id,
            "columns": [{**asdict(column.info), "id": column.field_id} for column in self.columns],
            "key": list(self.key),
            "from_lsn": format_lsn(self.from_lsn),
            "exact_id": self.exact_id,
            "last_id": self.last_id,
        }

    @classmethod
    def decode(cls, name: TableName, body: Mapping[str, Any]) -> LakeTable:
        """As `encode` stored it."""
        return cls(
            name,
            body["relation_id"],
            tuple(
                LakeColumn(ColumnInfo.decode(stored), stored["id"]) for stored in body["columns"]
            ),
            tuple(body["key"]),
            parse_lsn(body["from_lsn"]),
            body["exact_id"],
            body["last_id"],
        )


def table_properties(table: LakeTable, slot: str) -> dict[str, str]:
    """The properties of its metadata by which a suite finds the table again."""
    return {SOURCE_PROPERTY: slot, TABLE_PROPERTY: orjson.dumps(table.encode()).decode()}


def described_table(name: TableName, properties: Mapping[str, str], slot: str) -> LakeTable | None:
    """The table that a metadata's properties describe; None if another program made it."""
    # Several suites may share a catalog, and each writes its own tables only.
    if properties.get(SOURCE_PROPERTY) != slot:
        return None
    return LakeTable.decode(name, orjson.loads(properties[TABLE_PROPERTY]))


def new_table(
    name: TableName,
    relation_id: int,
    columns: Sequence[ColumnInfo],
    key: tuple[str, ...],
    from_lsn: int,
    first_id: int = 1,
) -> LakeTable:
    """A table with new field IDs from `first_id` on."""
    numbered = tuple(
        LakeColumn(column, first_id + place * _IDS_PER_COLUMN)
        for place, column in enumerate(columns)
    )
    exact_id = first_id + len(columns) * _IDS_PER_COLUMN
    return LakeTable(name, relation_id, numbered, key, from_lsn, exact_id, exact_id + 2)


@dataclass(frozen=True, slots=True)
class Evolution:
    """A table in a new shape; `copy` says why its rows have to be copied again."""

    table: LakeTable
    copy: str | None = None


def evolve(table: LakeTable, info: TableInfo) -> Evolution:
    """The table in the shape of an archived row's relation."""
    if info.relation_id != table.relation_id:
        return Evolution(table, "another table has its name now")
    last_id = table.last_id
    columns = []
    for column in info.columns:
        before = _counterpart(table, column)
        if before is None:
            taken = column.name in {known.info.name for known in table.columns}
            # Without values in existing rows it is NULL there, which the lake shows without a
            # rewrite.
            if column.filled or taken:
                return Evolution(table, f"its new column {column.name} may have values")
            columns.append(LakeColumn(column, last_id + 1))
            last_id += _IDS_PER_COLUMN
        # Values of the former type are in the files, and a USING clause may have computed others.
        elif _type(before.info) != _type(column):
            return Evolution(table, f"its column {column.name} has another type")
        else:
            columns.append(replace(before, info=column))
    return Evolution(replace(table, columns=tuple(columns), key=info.key, last_id=last_id))


def copied(
    table: LakeTable,
    relation_id: int,
    columns: Sequence[ColumnInfo],
    key: tuple[str, ...],
    from_lsn: int,
) -> LakeTable:
    """The table in the shape of a new copy; columns that are still the same keep their IDs."""
    last_id = table.last_id
    numbered = []
    for column in columns:
        before = None
        # Numbers of columns count within one relation.
        if relation_id == table.relation_id:
            before = _counterpart(table, column)
        # An ID is never reused: old snapshots read their files by it.
        if before is None or _type(before.info) != _type(column):
            numbered.append(LakeColumn(column, last_id + 1))
            last_id += _IDS_PER_COLUMN
        else:
            numbered.append(replace(before, info=column))
    return replace(
        table,
        relation_id=relation_id,
        columns=tuple(numbered),
        key=key,
        from_lsn=from_lsn,
        last_id=last_id,
    )


def _counterpart(table: LakeTable, column: ColumnInfo) -> LakeColumn | None:
    """The column as the lake has it: by its number in the catalog, else by its name."""
    for known in table.columns:
        # A number survives a rename; archives of older versions have none.
        if column.number and known.info.number:
            if column.number == known.info.number:
                return known
        elif column.name == known.info.name:
            return known
    return None


def _stored_type(column: LakeColumn) -> IcebergType:
    stored = iceberg_type(column.info)
    if isinstance(stored, ListType):
        return ListType(column.field_id + 1, stored.element_type, element_required=False)
    return stored


def _type(column: ColumnInfo) -> tuple[int, int]:
    return column.type_oid, column.type_modifier
