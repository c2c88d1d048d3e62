"""The documents of one index of an OpenSearch sink, and its position, as a verifier reads them.

Reads only, a page at a time. Shares no conversion of values with the sink.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.consumer.watermark import Watermark
from headrace.errors import HeadraceError
from headrace.sinks.configuration import SinkConfiguration
from headrace.sinks.marks import marks_from_json
from headrace.sinks.opensearch import OpenSearchOptions
from headrace.sinks.opensearch_client import Client, part
from headrace.sinks.opensearch_indices import writer_of
from headrace.sinks.opensearch_marks import INDEX
from headrace.sinks.opensearch_names import EXACT, UNKNOWN, field_name
from headrace.sinks.port import SinkAwayError, SinkOptions
from headrace.sinks.target_options import read_options
from headrace.verify.digest import Row
from headrace.verify.types import SqlType

_PAGE = 500
_SCROLL = "5m"
_INTEGERS = frozenset({"smallint", "integer", "bigint", "oid"})
_FLOATS = frozenset({"real", "double precision"})
_DOCUMENTS = frozenset({"json", "jsonb"})
# No text is equal to it: the sink never received the value.
MISSING = ("no value",)


class NoIndexError(HeadraceError):
    """The sink has no index of a table."""

    remedy = "Check the sink's `tables`, and that it has run: an index appears with the first row."


class Aliases(NamedTuple):
    """Two names of one index: the readers', and the writers', which ends with the index."""

    read: str
    write: str


@dataclass(slots=True)
class Documents:
    """One sink's documents; `stream` identifies the stream that it follows."""

    client: Client
    sink: SinkConfiguration
    stream: str
    options: OpenSearchOptions

    @classmethod
    def of(cls, sink: SinkConfiguration, environ: Mapping[str, str], stream: str) -> Documents:
        """A client with the sink's own login."""
        given = SinkOptions(sink.name, sink.address(environ), options=sink.secrets(environ))
        chosen = read_options(OpenSearchOptions, given)
        return cls(Client(given, chosen), sink, stream, chosen)

    async def marks(self) -> Mapping[str, Watermark]:
        """How far the sink has written."""
        path = f"/{part(INDEX)}/_doc/{part(self.sink.name)}"
        found = await self.client.ask("GET", path, accept=(404,))
        stored = (found.body.get("_source") or {}).get("marks")
        if not stored:
            return {}
        return marks_from_json(str(stored).encode(), self.stream)

    async def tables(self) -> dict[tuple[str, str], Aliases]:
        """The aliases of the index that readers see, by schema and table."""
        found = await self.client.ask("GET", f"/{part('*~0*')}", allow_no_indices="true")
        aliases = {}
        for name, one in found.body.items():
            meta = ((one.get("mappings") or {}).get("_meta") or {}).get("headrace") or {}
            # Only the index that readers see has the alias.
            if meta.get("sink") == self.sink.name and meta["alias"] in (one.get("aliases") or {}):
                aliases[str(meta["schema"]), str(meta["table"])] = Aliases(
                    str(meta["alias"]), writer_of(name)
                )
        return aliases

    async def refresh(self, alias: str) -> None:
        """Let searches find every document that was written before."""
        await self.client.ask("POST", f"/{part(alias)}/_refresh")

    async def rows(
        self, alias: str, types: Mapping[str, SqlType], names: Sequence[str]
    ) -> AsyncIterator[list[Row]]:
        """Each document: its ID, and the values of these columns as a mirror in SQLite has them."""
        query = {"size": _PAGE, "sort": ["_doc"]}
        found = (
            await self.client.ask("POST", f"/{part(alias)}/_search", query, scroll=_SCROLL)
        ).body
        while True:
            scroll = {"scroll_id": found["_scroll_id"]}
            # A failed shard would be documents that are left out.
            if found.get("timed_out") or found["_shards"]["failed"]:
                raise SinkAwayError(f"{self.client.where} can't read all of {alias} now")
            hits = found["hits"]["hits"]
            if not hits:
                await self.client.ask("DELETE", "/_search/scroll", scroll, accept=(404,))
                return
            yield [(hit["_id"], *_values(hit["_source"], types, names)) for hit in hits]
            again = {"scroll": _SCROLL, **scroll}
            found = (await self.client.ask("POST", "/_search/scroll", again)).body


def _values(source: Mapping[str, Any], types: Mapping[str, SqlType], names: Sequence[str]) -> Row:
    texts = source.get(EXACT) or {}
    unknown = source.get(UNKNOWN) or ()
    found: list[Any] = []
    for name in names:
        field = field_name(name)
        if field in texts:
            # PostgreSQL's own text, where JSON loses something.
            found.append(texts[field])
        elif field in unknown:
            found.append(MISSING)
        else:
            # A document from before its table had the column lacks the field, which means NULL.
            found.append(_stored(source.get(field), types[name]))
    return tuple(found)


def _stored(value: Any, kind: SqlType) -> Any:
    """A value of a document as a mirror in SQLite stores it."""
    if value is None:
        return None
    try:
        return _read(value, kind)
    except (TypeError, ValueError):
        # Another program wrote it; it is equal to no value of the source.
        return ("no value of this type", repr(value))


def _read(value: Any, kind: SqlType) -> Any:
    name = kind.name
    if name in _DOCUMENTS or (kind.element is not None and isinstance(value, list)):
        return json.dumps(value)
    if name == "boolean" and isinstance(value, bool):
        return int(value)
    if name in _INTEGERS:
        return int(value)
    if name in _FLOATS:
        number = float(value)
        return "NaN" if math.isnan(number) else number
    if not isinstance(value, str):
        raise TypeError(name)
    if name == "bytea":
        return base64.b64decode(value, validate=True)
    return value
