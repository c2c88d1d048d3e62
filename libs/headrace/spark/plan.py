"""The plan of one snapshot for the driver and its tasks: what to copy, in which ranges and
messages.

Never contains a secret: tasks take credentials from their own environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from headrace.contract.values import (
    ArrayForm,
    Converter,
    Encoding,
    JsonForm,
    TypeInfo,
    TypeKind,
    ValueOptions,
    converter,
    text,
)
from headrace.postgres.quoting import quote_name
from headrace.settings import SnapshotValues
from headrace.spark.ranges import PageRange


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column, and its type's OID."""

    name: str
    type_oid: int


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """Everything that a task needs except credentials."""

    snapshot_id: str
    exported: str
    lsn: str
    token: str
    table: str
    columns: tuple[PlannedColumn, ...]
    key: tuple[str, ...]
    types: Mapping[int, TypeInfo]
    conditions: tuple[str, ...]
    tasks: tuple[tuple[PageRange, ...], ...]
    permits: str
    encoding: Encoding
    arrays: ArrayForm
    json_values: JsonForm
    int8_as_string: bool
    values: SnapshotValues
    zstd: bool
    chunk_rows_max: int
    payload_bytes_max: int
    large_bucket: str

    def copy_query(self, page_range: PageRange) -> str:
        """The rows of a range, in storage order."""
        # ONLY: partitions have ranges themselves, and rows of inheriting tables belong to those.
        names = ", ".join(quote_name(column.name) for column in self.columns)
        where = " AND ".join(f"({condition})" for condition in (page_range.sql(), *self.conditions))
        # Every part is quoted.
        return f"SELECT {names} FROM ONLY {page_range.relation} WHERE {where}"  # noqa: S608

    def converters(self) -> tuple[Converter, ...]:
        """The conversions of each column's text to its value on the wire."""
        if self.values is SnapshotValues.TEXT:
            return tuple(text for _ in self.columns)
        options = ValueOptions(self.encoding, self.arrays, self.json_values, self.int8_as_string)
        return tuple(converter(column.type_oid, options, self.types.get) for column in self.columns)

    def pack(self) -> bytes:
        return bytes(
            msgpack.packb(
                {name: getattr(self, name) for name in _PLAIN}
                | {
                    "columns": [[column.name, column.type_oid] for column in self.columns],
                    "types": [
                        [oid, info.kind, info.base_oid, info.element_oid, info.delimiter]
                        for oid, info in self.types.items()
                    ],
                    "tasks": [
                        [[r.index, r.relation, r.first, r.end, r.relation_id] for r in task]
                        for task in self.tasks
                    ],
                }
            )
        )

    @classmethod
    def unpack(cls, packed: bytes) -> SnapshotPlan:
        body: dict[str, Any] = msgpack.unpackb(packed, use_list=False)
        return cls(
            **{name: body[name] for name in _PLAIN - _ENUMS},
            encoding=Encoding(body["encoding"]),
            arrays=ArrayForm(body["arrays"]),
            json_values=JsonForm(body["json_values"]),
            values=SnapshotValues(body["values"]),
            columns=tuple(PlannedColumn(*column) for column in body["columns"]),
            types={
                oid: TypeInfo(TypeKind(kind), base, element, mark)
                for oid, kind, base, element, mark in body["types"]
            },
            tasks=tuple(
                tuple(PageRange(*page_range) for page_range in task) for task in body["tasks"]
            ),
        )


_ENUMS = frozenset({"encoding", "arrays", "json_values", "values"})
# By the class's fields, so that a new one can't be forgotten.
_PLAIN = frozenset(SnapshotPlan.__slots__) - {"columns", "types", "tasks"}
