"""A trail and a source, made by hand, for the tests of a revert."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.audit.history import Known, TrailRow
from headrace.audit.ordering import Reference
from headrace.audit.table import AuditTable
from headrace.cli.audit import former_rows, revert
from headrace.contract import type_oids
from headrace.contract.values import TypeInfo, TypeKind
from headrace.lsn import Position
from headrace.postgres import catalog
from headrace.postgres.catalog import Keys
from headrace.postgres.facts import RelationFiles

TABLE = AuditTable("public", "changes", partitioned=False)
INT, TEXT = 23, 25
NOW = datetime(2026, 1, 1, tzinfo=UTC)
Row = dict[str, str | None]


def change(operation: str = "UPDATE", number: int = 1, **fields: Any) -> dict[str, Any]:
    before = json.dumps(fields.pop("before", {}))
    after = json.dumps(fields.pop("after", {}))
    return {
        "id": f"00000000-0000-8000-8000-{number:012d}",
        "database": "db",
        "schema": "public",
        "table": "users",
        "operation": operation,
        "primary_key": "1",
        "position": 100,
        "ordinal": number,
        "source": "s",
        "exact": None,
        "unchanged": None,
        "before": before,
        "after": after,
        "committed_at": NOW,
        "transaction_id": 7,
        **fields,
    }


UPDATE = change(before={"id": 1, "a": "was"}, after={"id": 1, "a": "is"})
INSERT = change("CREATE", after={"id": 1, "a": "is"})
DELETE = change("DELETE", before={"id": 1, "a": "was"})
WAS: Row = {"id": "1", "a": "was"}
IS: Row = {"id": "1", "a": "is"}


class Source:
    """The source: its rows before and after each statement, and what was executed."""

    def __init__(self, *rows: Row | None) -> None:
        # Of each reading of a row.
        self.rows: list[list[Row]] = [[] if row is None else [row] for row in rows]
        self.columns: dict[str, int] = {"id": INT, "a": TEXT}
        self.generated: set[str] = set()
        self.executed: list[tuple[str, tuple[object, ...]]] = []
        self.read: list[str] = []
        self.status = "UPDATE 1"
        self.referring = 0
        self.counted: list[str] = []
        self.outcome = ""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            self.outcome = "rolled back"
            raise
        self.outcome = "committed"

    async def execute(self, statement: str, *arguments: object) -> str:
        self.executed.append((statement, arguments))
        return self.status

    async def fetchval(self, query: str, *_: object) -> Any:
        if "count(*)" in query:
            self.counted.append(query)
            return self.referring
        return "db"

    async def fetch(self, query: str, *_: object) -> list[Any]:
        if "pg_attribute" in query:
            return [
                {
                    "relation_id": 5,
                    "name": name,
                    "number": number,
                    "type_oid": type_oid,
                    "generated": name in self.generated,
                }
                for number, (name, type_oid) in enumerate(self.columns.items(), 1)
            ]
        self.read.append(query)
        return self.rows.pop(0)

    @property
    def written(self) -> list[str]:
        return [text for text, _ in self.executed if text.startswith(("UPDATE", "INS", "DEL"))]


def describe_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source's catalog: keys, files, and one type of a user's, a domain on jsonb."""

    async def types(_: object, oids: set[int]) -> dict[int, TypeInfo]:
        domain = TypeInfo(TypeKind.DOMAIN, base_oid=type_oids.JSONB)
        return dict.fromkeys(oids, domain)

    async def files(_: object, ids: list[int]) -> dict[int, RelationFiles]:
        return {one: RelationFiles("1:1,1:2", 5, first=True) for one in ids}

    async def keys(_: object, ids: list[int]) -> dict[int, Keys]:
        return dict.fromkeys(ids, Keys(("id",), ()))

    async def in_part(*_: object) -> bool:
        return False

    monkeypatch.setattr(former_rows, "is_published_in_part", in_part)
    monkeypatch.setattr(catalog, "types", types)
    monkeypatch.setattr(catalog, "files", files)
    monkeypatch.setattr(catalog, "keys", keys)


class Trail:
    """In the place of the queries of the trail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.references: list[Reference] = []
        self.later: Mapping[str, Any] | None = None
        self.earlier = TrailRow(None)
        self.asked: list[tuple[Any, ...]] = []
        self.gap: str | None = None
        self.known: Known | None = Known(5, Position(50, 0), "1:1")
        # The last written row of the table before a change, and by now.
        self.written: list[Mapping[str, Any] | None] = [None, None]
        for module, name in (
            (revert, "references_to"),
            (revert, "later_change"),
            (former_rows, "row_at"),
            (former_rows, "gap_between"),
            (former_rows, "known_of"),
            (former_rows, "key_columns"),
            (former_rows, "written_before"),
        ):
            monkeypatch.setattr(module, name, getattr(self, name))

    async def references_to(self, *_: object) -> list[Reference]:
        return self.references

    async def later_change(self, *given: object) -> Mapping[str, Any] | None:
        self.asked.append(given)
        return self.later

    async def row_at(self, *given: Any) -> TrailRow:
        self.asked.append(given)
        return self.earlier

    async def gap_between(self, *_: object) -> str | None:
        return self.gap

    async def known_of(self, *_: object) -> Known | None:
        return self.known

    async def key_columns(self, *_: object) -> tuple[str, ...]:
        return ("id",)

    async def written_before(self, *given: object) -> Mapping[str, Any] | None:
        return self.written[0 if len(given) > 3 else 1]
