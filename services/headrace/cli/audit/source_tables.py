"""The tables of the source as they are now, for `headrace audit revert`.

Promises: a table that was described is neither rewritten nor swapped by a rename until the
transaction of its connection ends. Says which columns stay as they are, by --leave.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from headrace.audit.revert import IrreversibleError, SourceColumn, SourceTable, ValueForm
from headrace.audit.table_book import Names
from headrace.contract import type_oids
from headrace.contract.values import (
    ArrayForm,
    JsonForm,
    TypeInfo,
    TypeKind,
    ValueOptions,
    converter,
)
from headrace.errors import SettingError
from headrace.postgres import catalog
from headrace.postgres.quoting import quote_table

_COLUMNS = """
SELECT attrelid::int8 AS relation_id, attname AS name, attnum AS number, atttypid::int8 AS type_oid,
       attgenerated <> '' AS generated
FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
"""


@dataclass(slots=True)
class SourceTables:
    """Describes each table once."""

    connection: asyncpg.Connection
    json_values: JsonForm
    # Columns that stay as they are: column, table.column or schema.table.column.
    leave: Collection[str] = ()
    _tables: dict[Names, SourceTable] = field(default_factory=dict)
    # Each table's present relation and files.
    _files: dict[Names, tuple[int, frozenset[str]]] = field(default_factory=dict)
    _left: set[str] = field(default_factory=set)

    async def table(self, schema: str, name: str) -> SourceTable:
        names = (schema, name)
        if names not in self._tables:
            self._tables[names] = await self._described(schema, name)
        return self._tables[names]

    async def files(self, names: Names) -> tuple[int, frozenset[str]]:
        """The table's relation and its files."""
        await self.table(*names)
        return self._files[names]

    def require_left(self) -> None:
        """A column that no table has is a typing error."""
        if unknown := sorted({*self.leave} - self._left):
            raise SettingError(
                f"--leave {unknown[0]}: no table of these changes has this column",
                remedy="Write column, table.column or schema.table.column.",
            )

    async def _described(self, schema: str, name: str) -> SourceTable:
        rows = await self.connection.fetch(_COLUMNS, quote_table(schema, name))
        if not rows:
            raise IrreversibleError(
                f"the table {schema}.{name} no longer exists",
                remedy="Create it again, or undo it manually.",
            )
        # Built-in types are known without the catalog.
        own = {row["type_oid"] for row in rows if row["type_oid"] >= type_oids.FIRST_USER}
        types = await catalog.types(self.connection, own)
        columns = {row["name"]: self._column(schema, name, row, types) for row in rows}
        relation_id = rows[0]["relation_id"]
        # Reading locks the table against a rewrite or a swap until the transaction ends.
        await self.connection.execute(f"SELECT FROM {quote_table(schema, name)} LIMIT 0")
        found = await catalog.files(self.connection, [relation_id])
        files = found[relation_id].text if relation_id in found else ""
        self._files[schema, name] = relation_id, frozenset(files.split(","))
        keys = await catalog.keys(self.connection, [relation_id])
        return SourceTable(schema, name, columns, keys[relation_id].row)

    def _column(
        self, schema: str, table: str, row: Mapping[str, Any], types: Mapping[int, TypeInfo]
    ) -> SourceColumn:
        oid = row["type_oid"]
        # A domain may stand on another one.
        while (info := types.get(oid)) is not None and info.kind is TypeKind.DOMAIN:
            oid = info.base_oid
        kind = {
            type_oids.JSON: ValueForm.DOCUMENT,
            type_oids.JSONB: ValueForm.DOCUMENT,
            type_oids.BYTEA: ValueForm.BINARY,
        }.get(oid)
        told = converter(oid, ValueOptions(), types.get)
        listed = converter(oid, ValueOptions(arrays=ArrayForm.LIST), types.get)
        left = {*self.leave} & {
            row["name"],
            f"{table}.{row['name']}",
            f"{schema}.{table}.{row['name']}",
        }
        # `require_left` reports a column that is in no table.
        self._left |= left
        as_text = self.json_values is JsonForm.TEXT
        return SourceColumn(
            row["name"],
            row["number"],
            kind or ValueForm.OTHER,
            row["generated"],
            told,
            listed,
            bool(left),
            as_text,
        )
