"""A sink in OpenSearch on a real server, and the documents of its table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.sinks.opensearch import OpenSearchSink
from headrace.sinks.port import SinkOptions
from headrace.sinks.routing import RoutedTransaction, Router
from headrace.testing.opensearch import OpenSearchServer
from tests.support.opensearch_reading import Reader
from tests.support.sink_records import event, inserts, marks, of_events, transaction


class Place:
    """One sink and the index of its table."""

    def __init__(self, server: OpenSearchServer, name: str) -> None:
        self.server = server
        self.name = name
        self.reader = Reader(server)
        self.index = name
        # The newest published description of the table.
        self.columns: list[Mapping[str, Any]] | None = None

    def sink(self, name: str = "", **options: Any) -> OpenSearchSink:
        async def describe(schema: str, table: str) -> Mapping[str, Any] | None:
            assert (schema, table) == ("public", "users")
            return None if self.columns is None else {"columns": self.columns}

        to = f"opensearch://127.0.0.1:{self.server.port}"
        given = {"replicas": 0, **options}
        return OpenSearchSink(SinkOptions(name or self.name, to, "", given, describe))

    def routed(self, *found: Any) -> RoutedTransaction:
        return of_events(*found, router=self.router)

    @property
    def router(self) -> Router:
        return Router(destination=lambda _: self.index)

    def inserts(self, lsn: int, *ids: int, **more: Any) -> RoutedTransaction:
        return inserts(lsn, *ids, router=self.router, **more)

    def transaction(self, lsn: int, *changes: Any) -> RoutedTransaction:
        return transaction(lsn, *changes, router=self.router)

    async def apply(self, *transactions: RoutedTransaction, **options: Any) -> None:
        sink = self.sink(**options)
        try:
            await sink.open()
            await sink.write(transactions)
            await sink.commit(marks(*transactions))
        finally:
            await sink.close()

    def rows(self) -> dict[str, dict[str, Any]]:
        return self.reader.rows(self.index)

    def generations(self) -> list[str]:
        """The numbers of the indices that there are."""
        names = self.reader.indices(f"{self.index}~*")
        return [name.rpartition("~")[2].partition(".")[0] for name in names]

    def schema(
        self, lsn: int, version: int, columns: Mapping[str, str], *changes: Any, **more: Any
    ) -> RoutedTransaction:
        listed = [{"name": name, "data_type": kind} for name, kind in columns.items()]
        found = {"version": version, "columns": listed, "changes": list(changes), **more}
        return self.routed(event(lsn, 0, "SCHEMA", {}, last=False, **found))
