"""The simulated catalog of tables, which replaces the queries of `headrace.postgres.catalog`.

A table has columns and a file. DDL adds a column, with or without a default that fills older rows,
or rewrites the rows, which leaves no trace in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.postgres.catalog import PublicationReading, TableReading
from headrace.postgres.facts import (
    CatalogSnapshot,
    ColumnFacts,
    PublishedTable,
    RelationNow,
    ServerIdentity,
    TableFacts,
)

if TYPE_CHECKING:
    from tests.simulation.postgres import Server

INT4 = 23
_PUBLISHES = "insert,update,delete,truncate/700"


@dataclass(slots=True)
class Column:
    name: str
    number: int
    xid: int
    filled: bool = False


@dataclass(slots=True)
class Table:
    oid: int
    name: str
    # The publication that has it; no table is in two.
    publication: str
    columns: list[Column] = field(default_factory=list)
    node: int = 0
    # The transactions that defined the relation and its columns last.
    by: int = 700
    columns_by: int = 700
    # How often its rows were rewritten without events.
    rewrites: int = 0

    @property
    def storage(self) -> str:
        return f"{self.oid}:{self.node}:{self.by}:0/{self.columns_by:032x}/"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def add(self, xid: int, *, filled: bool) -> None:
        number = len(self.columns) + 1
        self.columns.append(Column(f"c{number}", number, xid, filled))
        self.by = self.columns_by = xid

    def rename(self, xid: int) -> None:
        """Another name for the last column: rows keep their form."""
        last = self.columns[-1]
        last.name = f"{last.name}r"
        last.xid = self.by = self.columns_by = xid

    def rewrite(self, xid: int) -> None:
        """`ALTER TABLE … ALTER COLUMN a TYPE int USING a * 100`."""
        self.node += 1
        self.rewrites += 1
        self.by = self.columns_by = xid


def table(oid: int, name: str, publication: str) -> Table:
    return Table(oid, name, publication, [Column("id", 1, 700), Column("a", 2, 700)], node=oid)


class Session:
    """An ordinary connection, as far as Headrace looks at one."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.closed = False

    def is_closed(self) -> bool:
        return self.closed

    def terminate(self) -> None:
        self.closed = True

    async def ask(self) -> Any:
        await asyncio.sleep(self.server.latency())
        if self.closed or not (self.server.primary.up and self.server.catalog_up):
            self.closed = True
            raise ConnectionResetError("the server is down")
        return self.server.primary


async def table_facts(
    session: Session,
    relation_id: int,
    types: Sequence[tuple[int, int]],
    publication: str,  # as there
    xid: int,
) -> tuple[TableFacts, bool]:
    cluster = await session.ask()
    known = cluster.tables[relation_id]
    columns = {
        one.name: ColumnFacts(
            0 if one.xid > xid else one.number,
            is_nullable=True,
            column_default=None,
            filled=one.filled,
            missing=b"7" if one.filled else None,
        )
        for one in known.columns
    }
    facts = TableFacts(
        primary_key=("id",),
        columns=columns,
        type_names=dict.fromkeys(types, "integer"),
        membership=known.oid + 1,
        last_number=len(known.columns),
        storage=known.storage,
        publication=_PUBLISHES,
        lsn=cluster.end,
        next_xid=cluster.next_xid,
    )
    return facts, True


async def relations_now(
    session: Session,
    relation_ids: Sequence[int],
    xid: int,  # as there
) -> tuple[dict[int, RelationNow], bool]:
    cluster = await session.ask()
    there = [cluster.tables[oid] for oid in relation_ids if oid in cluster.tables]
    return {
        one.oid: RelationNow("public", one.name, one.storage, cluster.end) for one in there
    }, True


async def read_publication(session: Session, publication: str) -> PublicationReading:
    cluster = await session.ask()
    tables = [one for one in cluster.tables.values() if one.publication == publication]
    return PublicationReading(
        cluster.end,
        tuple(map(_reading, tables)),
        frozenset(cluster.tables),
        CatalogSnapshot(cluster.next_xid, cluster.next_xid),
        {},
        _PUBLISHES,
        ServerIdentity("7000", cluster.timeline),
    )


def _reading(one: Table) -> TableReading:
    columns: Any = tuple(
        {
            "name": column.name,
            "type_oid": INT4,
            "modifier": -1,
            "data_type": "integer",
            "is_key": column.name == "id",
            "is_nullable": True,
            "column_default": None,
            "number": column.number,
            "filled": column.filled,
            "base_type": None,
            "missing": b"7" if column.filled else None,
        }
        for column in one.columns
    )
    published = PublishedTable(one.oid, "public", one.name, "d", one.names, None, "r")
    return TableReading(published, columns, ("id",), one.oid + 1, one.storage, len(one.columns))
