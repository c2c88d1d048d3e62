"""The indices of an OpenSearch sink: generations behind an alias, which readers use.

A change that versions of documents can't express (a truncate, a column that gets another name or
type, a new copy) makes the next generation, and the alias moves to it in one step. Each index
stores the position before which everything is done, so that nothing older enters it again.

Promises: readers find the former generation complete until the next one is, and a process that was
replaced writes to an index that is gone, never to the new one. It touches no index of others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from headrace.lsn import ORIGIN, Position
from headrace.sinks.opensearch_client import Client, part
from headrace.sinks.opensearch_mapping import Properties
from headrace.sinks.port import SinkAwayError, SinkError

# A table may have 1,600 columns, and a text has two fields.
_FIELDS_MAX = 10_000
_META = "headrace"
_PAGE = 500
_SCROLL = "5m"

# Bulk lines of one document each.
Write = Callable[[list[bytes]], Awaitable[None]]
Change = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Index:
    """One generation of a destination."""

    # The name that readers use.
    alias: str
    # One index has the rows of one table.
    schema: str
    table: str
    generation: int = 1
    # The session that makes a following generation: two processes never fill the same index.
    session: int = 0
    # Everything before this position is done.
    floor: Position = ORIGIN
    # The version and position of the last schema event that it has applied; 0 if none.
    applied: int = 0
    shaped: Position = ORIGIN
    # The snapshot that it contains.
    copy: str = ""
    # Not visible to readers yet.
    staged: bool = False
    properties: Properties = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.alias}~{self.generation:06d}.{self.session}"

    def has_shape(self, version: int, position: Position) -> bool:
        """Whether a schema event comes again. Versions begin again when a suite does."""
        if version == self.applied:
            return version != 0
        return version < self.applied and position < self.shaped

    def following(self, **changed: Any) -> Index:
        """The next generation."""
        return replace(self, generation=self.generation + 1, **changed)

    @property
    def writer(self) -> str:
        """An alias that ends with the index: no write can create an index of this name."""
        return writer_of(self.name)


@dataclass(slots=True)
class Indices:
    """The indices of one sink."""

    client: Client
    sink: str
    settings: Mapping[str, Any]
    # Raises if another process has taken over.
    confirm: Callable[[], Awaitable[None]]
    # The number of the sink's process, which no earlier one had.
    session: int = 0
    # By alias: what readers see, and what is loaded to replace it.
    current: dict[str, Index] = field(default_factory=dict)
    staged: dict[str, Index] = field(default_factory=dict)

    async def load(self) -> None:
        """Find the sink's indices, and give them the sink's settings."""
        unfinished: list[Index] = []
        found = await self.client.ask("GET", f"/{part('*~0*')}", allow_no_indices="true")
        for name, one in found.body.items():
            index = self._described(one)
            if index is None or index.name != name:
                continue
            if index.staged:
                unfinished.append(index)
                continue
            self.current[index.alias] = index
            kept = one["settings"]["index"].get("gc_deletes")
            if kept != self.settings["index.gc_deletes"]:
                await self.client.ask(
                    "PUT",
                    f"/{part(name)}/_settings",
                    {"index.gc_deletes": self.settings["index.gc_deletes"]},
                )
        for index in unfinished:
            current = self.current.get(index.alias)
            if index.copy and (current is None or index.copy != current.copy):
                # A copy continues where it was.
                self.staged[index.alias] = index
            else:
                # A process that was replaced finds its index gone.
                await self._remove(index)

    def _described(self, one: Mapping[str, Any]) -> Index | None:
        """An index of this sink; None if it is of another."""
        mappings = one.get("mappings") or {}
        meta = (mappings.get("_meta") or {}).get(_META) or {}
        if meta.get("sink") != self.sink:
            return None
        return Index(
            alias=meta["alias"],
            schema=meta["schema"],
            table=meta["table"],
            generation=int(meta["generation"]),
            session=int(meta["session"]),
            floor=_position(meta["floor"]),
            applied=int(meta["applied"]),
            shaped=_position(meta["shaped"]),
            copy=meta["copy"],
            staged=meta["alias"] not in (one.get("aliases") or {}),
            properties=mappings.get("properties") or {},
        )

    def of_table(self, schema: str, table: str) -> Index | None:
        """The index that readers of a table use."""
        found = (one for one in self.current.values() if (one.schema, one.table) == (schema, table))
        return next(found, None)

    async def begin(self, index: Index) -> Index:
        """Create the first index of a destination, visible immediately."""
        await self.confirm()
        await self._refuse_others(index.alias)
        await self._create(replace(index, staged=False))
        self.current[index.alias] = index
        return index

    async def _refuse_others(self, alias: str) -> None:
        found = await self.client.ask("GET", f"/{part(alias)}", accept=(404,))
        if found.status == 200:
            raise SinkError(
                f"{self.client.where}: {alias} exists, and is not of the sink {self.sink}",
                remedy="Remove it, or set another `index` for the sink.",
            )

    async def stage(self, index: Index) -> Index:
        """Create an index that readers do not see yet, instead of one that was left unfinished."""
        await self.confirm()
        if (left := self.staged.pop(index.alias, None)) is not None:
            await self._remove(left)
        index = replace(index, staged=True, session=self.session)
        await self._create(index)
        self.staged[index.alias] = index
        return index

    async def _create(self, index: Index) -> None:
        aliases: dict[str, Any] = {index.writer: {}}
        if not index.staged:
            aliases[index.alias] = {}
        body = {
            "settings": {"index.mapping.total_fields.limit": _FIELDS_MAX, **self.settings},
            # A column that is not described yet is in the source, and is found later.
            "mappings": {"dynamic": False, **self._mapping(index)},
            "aliases": aliases,
        }
        await self.client.ask("PUT", f"/{part(index.name)}", body)

    async def _remove(self, index: Index) -> None:
        await self.client.ask("DELETE", f"/{part(index.name)}", accept=(404,))

    def _mapping(self, index: Index) -> dict[str, Any]:
        meta = {
            "sink": self.sink,
            "alias": index.alias,
            "schema": index.schema,
            "table": index.table,
            "generation": index.generation,
            "session": index.session,
            # As texts, because a number may be beyond what readers of JSON hold.
            "floor": f"{index.floor.lsn}/{index.floor.seq}",
            "applied": index.applied,
            "shaped": f"{index.shaped.lsn}/{index.shaped.seq}",
            "copy": index.copy,
        }
        return {"_meta": {_META: meta}, "properties": index.properties}

    async def describe(self, index: Index) -> Index:
        """Store an index's new fields and position."""
        await self.confirm()
        await self.client.ask("PUT", f"/{part(index.name)}/_mapping", self._mapping(index))
        self.current[index.alias] = index
        return index

    async def publish(self, index: Index) -> Index:
        """Show a staged index to readers instead of the former one, which is removed."""
        await self.confirm()
        # Documents become visible to searches by a refresh.
        await self.client.ask("POST", f"/{part(index.name)}/_refresh")
        # In one step: no reader finds both, or neither.
        actions: list[dict[str, Any]] = [{"add": {"index": index.name, "alias": index.alias}}]
        former = self.current.get(index.alias)
        if former is not None:
            actions.append({"remove_index": {"index": former.name}})
        await self.client.ask("POST", "/_aliases", {"actions": actions})
        self.staged.pop(index.alias, None)
        visible = replace(index, staged=False)
        self.current[index.alias] = visible
        return visible

    async def empty(self, index: Index, floor: Position, **changed: Any) -> Index:
        """Replace an index by an empty one."""
        return await self.publish(await self.stage(index.following(floor=floor, **changed)))

    async def rebuild(
        self, index: Index, following: Index, version_max: int, change: Change, write: Write
    ) -> Index:
        """Replace an index by one with the same documents, each changed. No document of it has a
        version above `version_max`.
        """
        following = await self.stage(following)
        await self.client.ask("POST", f"/{part(index.name)}/_refresh")
        async for hits in self._pages(index):
            lines = [_line(following, hit, version_max, change) for hit in hits]
            await write(lines)
        return await self.publish(following)

    async def _pages(self, index: Index) -> AsyncIterator[list[dict[str, Any]]]:
        """The documents of an index, as they were at the beginning."""
        query = {"size": _PAGE, "version": True, "sort": ["_doc"]}
        path = f"/{part(index.name)}/_search"
        found = (await self.client.ask("POST", path, query, scroll=_SCROLL)).body
        while True:
            # A failed shard would be documents that are left out.
            if found.get("timed_out") or found["_shards"]["failed"]:
                raise SinkAwayError(f"{self.client.where} can't read all of {index.name} now")
            scroll = {"scroll_id": found["_scroll_id"]}
            if not found["hits"]["hits"]:
                await self.client.ask("DELETE", "/_search/scroll", scroll, accept=(404,))
                return
            yield found["hits"]["hits"]
            again = {"scroll": _SCROLL, **scroll}
            found = (await self.client.ask("POST", "/_search/scroll", again)).body


def writer_of(name: str) -> str:
    """The writing alias of an index."""
    return f"{name}~writer"


def _position(text: str) -> Position:
    lsn, seq = text.split("/")
    return Position(int(lsn), int(seq))


def _line(index: Index, hit: Mapping[str, Any], version_max: int, change: Change) -> bytes:
    source = dict(hit["_source"])
    change(source)
    # Its own version otherwise, so that a replay of later changes is still recognized.
    version = min(hit["_version"], version_max)
    return index_line(index.writer, hit["_id"], version, orjson.dumps(source))


def index_line(
    writer: str, document: str, version: int, body: bytes, *, equal: bool = False
) -> bytes:
    """The lines of a bulk request that store a document unless it has a later version."""
    place = orjson.dumps({"index": _place(writer, document, version, equal=equal)})
    return b"%b\n%b\n" % (place, body)


def delete_line(writer: str, document: str, version: int, *, equal: bool = False) -> bytes:
    """The line of a bulk request that removes a document unless it has a later version."""
    return orjson.dumps({"delete": _place(writer, document, version, equal=equal)}) + b"\n"


def _place(writer: str, document: str, version: int, *, equal: bool) -> dict[str, Any]:
    kind = "external_gte" if equal else "external"
    return {"_index": writer, "_id": document, "version": version, "version_type": kind}
