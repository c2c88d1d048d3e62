"""OpenSearch as its readers see it: by plain HTTP, without Headrace's code."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from headrace.testing.opensearch import OpenSearchServer


@dataclass(frozen=True)
class Reader:
    """Requests to one server."""

    server: OpenSearchServer

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to a request; None if what it names does not exist."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(  # noqa: S310  # loopback
            f"{self.server.url}{path}", data, headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310  # loopback
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise AssertionError(error.read().decode()) from error

    def hits(self, index: str) -> dict[str, dict[str, Any]]:
        """Every document that a search finds, by ID; none if there is no index."""
        path = f"/{quote(index, safe='')}"
        if self.ask("POST", f"{path}/_refresh") is None:
            return {}
        query = {"size": 10_000, "version": True, "query": {"match_all": {}}}
        found = self.ask("POST", f"{path}/_search", query)
        return {hit["_id"]: hit for hit in found["hits"]["hits"]}

    def rows(self, index: str) -> dict[str, dict[str, Any]]:
        """The source of every document, by ID."""
        return {document: hit["_source"] for document, hit in self.hits(index).items()}

    def every(self, index: str) -> list[dict[str, Any]]:
        """The source of every document, however many there are."""
        return [hit["_source"] for hit in self.every_hit(index)]

    def every_hit(self, index: str) -> list[dict[str, Any]]:
        """Every document with its ID, however many there are."""
        path = f"/{quote(index, safe='')}"
        if self.ask("POST", f"{path}/_refresh") is None:
            return []
        query = {"size": 5000, "sort": ["_doc"]}
        found = self.ask("POST", f"{path}/_search?scroll=1m", query)
        rows = []
        while found["hits"]["hits"]:
            rows += found["hits"]["hits"]
            scroll = {"scroll": "1m", "scroll_id": found["_scroll_id"]}
            found = self.ask("POST", "/_search/scroll", scroll)
        self.ask("DELETE", "/_search/scroll", {"scroll_id": found["_scroll_id"]})
        return rows

    def versions(self, index: str) -> dict[str, int]:
        """The version of every document, by ID."""
        return {document: hit["_version"] for document, hit in self.hits(index).items()}

    def fields(self, index: str) -> dict[str, Any]:
        """The fields of an index and their types."""
        found = self.ask("GET", f"/{quote(index, safe='')}/_mapping")
        ((_, one),) = found.items()
        return dict(one["mappings"]["properties"])

    def indices(self, pattern: str) -> list[str]:
        """The names of the indices, without their aliases."""
        return sorted(self.ask("GET", f"/{quote(pattern, safe='*')}?allow_no_indices=true"))

    def found(self, index: str, query: dict[str, Any]) -> list[str]:
        """The IDs that a query finds."""
        path = f"/{quote(index, safe='')}"
        self.ask("POST", f"{path}/_refresh")
        answer = self.ask("POST", f"{path}/_search", {"query": query})
        return sorted(hit["_id"] for hit in answer["hits"]["hits"])
