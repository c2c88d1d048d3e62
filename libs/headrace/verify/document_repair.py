"""Writes the documents that differ into an index of an OpenSearch sink, as the rows of a new copy
at the LSN of the comparison.

Promises: a document gets the version of that LSN. The server keeps a document that has a later
change, and every change that commits later replaces what was written here, so the sink need not be
held. The index is the one that was compared: one that replaces it is never written to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from headrace.lsn import Position
from headrace.mirror.source_values import SourceValues
from headrace.sinks.opensearch import OpenSearchOptions
from headrace.sinks.opensearch_bulk import Bulk
from headrace.sinks.opensearch_client import Client
from headrace.sinks.opensearch_indices import delete_line, index_line
from headrace.sinks.opensearch_mapping import document_of
from headrace.sinks.opensearch_names import version_of
from headrace.verify.check import RepairRefusedError
from headrace.verify.digest import Row


@dataclass(slots=True)
class DocumentRepair:
    """The lines of bulk requests for one index; `writer` is its writing alias."""

    client: Client
    options: OpenSearchOptions
    writer: str
    lsn: int
    lines: Sequence[bytes] = ()

    async def prepare(
        self, wanted: frozenset[str], rows: AsyncIterator[list[Row]], values: SourceValues
    ) -> None:
        """Take the documents with these IDs from the source's rows, which begin with theirs; the
        source has no row for the others.
        """
        version = version_of(Position(self.lsn, 0), copied=True)
        stored: dict[str, bytes] = {}
        async for some in rows:
            for document, *row in some:
                if document in wanted:
                    body = self._body(document, row, values)
                    # An equal version is that of a copy at this LSN, which has the same row.
                    line = index_line(self.writer, document, version, body, equal=True)
                    stored[document] = line
        deleted = [
            delete_line(self.writer, one, version, equal=True) for one in wanted - stored.keys()
        ]
        self.lines = [*stored.values(), *deleted]

    def _body(self, document: str, row: Sequence[str | None], values: SourceValues) -> bytes:
        try:
            body = document_of(*values.with_texts(row))
        except TypeError as error:
            raise RepairRefusedError(f"JSON can't hold a number of the row {document}") from error
        if len(body) > self.options.document_bytes_max:
            raise RepairRefusedError(
                f"The row {document} makes a document of {len(body)} bytes, more than "
                "`document_bytes_max`",
                remedy="Raise the sink's option.",
            )
        return body

    async def write(self) -> int:
        """Write them; returns the number of those that the server took."""
        bulk = Bulk(self.client, self.options.bulk_bytes_max, self.options.document_bytes_max)
        await bulk.send_lines(self.lines)
        return len(self.lines) - bulk.overtaken
