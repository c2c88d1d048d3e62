"""The marks of an OpenSearch sink: a document of a separate index.

Promises: the document is replaced only if it is the one that this session has written last, so of
two processes the older can't commit, and a server that has lost commits ends the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.consumer.watermark import Watermark
from headrace.sinks.marks import marks_from_json, marks_to_json
from headrace.sinks.opensearch_client import Client, HttpAnswer, part
from headrace.sinks.port import SinkAwayError, SinkFencedError

INDEX = "headrace~marks"
_BODY = {
    "settings": {"index.number_of_shards": "1", "index.auto_expand_replicas": "0-1"},
    "mappings": {"dynamic": False, "properties": {}},
}


class StoredMarks:
    """The marks of one sink."""

    def __init__(self, client: Client, sink: str, stream: str) -> None:
        self._client = client
        self._sink = sink
        self._stream = stream
        self._path = f"/{part(INDEX)}/_doc/{part(sink)}"
        # The number of this session, and the version of the document that it has written.
        self.session = 0
        self._held: dict[str, str] = {}
        self._written = b""

    async def open(self) -> dict[str, Watermark]:
        """Read the marks, and take over."""
        await self._client.ask("PUT", f"/{part(INDEX)}", _BODY, accept=(400,))
        found = await self._client.ask("GET", self._path, accept=(404,))
        marks: dict[str, Watermark] = {}
        # If there is no document, of two processes only one can create it.
        query = {"op_type": "create"}
        if found.body.get("found"):
            source = found.body["_source"]
            self.session = int(source["session"])
            query = _condition(found.body)
            if source["marks"]:
                self._written = str(source["marks"]).encode()
                marks = marks_from_json(self._written, self._stream)
        self.session += 1
        answer = await self._client.ask("PUT", self._path, self._body(), accept=(409,), **query)
        if answer.status == 409:
            raise SinkAwayError(f"{self._client.where}: another process opens {self._sink} too")
        self._held = _condition(answer.body)
        return marks

    async def confirm(self) -> None:
        """Raise if another process has taken over, or the server has lost a commit."""
        found = await self._client.ask("GET", self._path, accept=(404,))
        if _condition(found.body) != self._held:
            raise self._lost(found)

    async def store(self, marks: Mapping[str, Watermark]) -> None:
        """Replace the marks."""
        self._written = marks_to_json(marks, self._stream)
        answer = await self._client.ask(
            "PUT", self._path, self._body(), accept=(404, 409), **self._held
        )
        if answer.status in {404, 409}:
            raise self._lost(await self._client.ask("GET", self._path, accept=(404,)))
        self._held = _condition(answer.body)

    def _body(self) -> dict[str, Any]:
        # As a text: positions are beyond the numbers that some readers of JSON hold.
        return {"session": self.session, "marks": self._written.decode()}

    def _lost(self, found: HttpAnswer) -> SinkFencedError | SinkAwayError:
        source: Mapping[str, Any] = found.body.get("_source") or {}
        if int(source.get("session", 0)) > self.session:
            return SinkFencedError(f"{self._client.where}: another process has opened {self._sink}")
        # A server that was restored: the next session continues from what it has.
        return SinkAwayError(f"{self._client.where} has lost commits of {self._sink}")


def _condition(body: Mapping[str, Any]) -> dict[str, str]:
    """The query by which a write replaces this document only."""
    return {
        "if_seq_no": str(body.get("_seq_no", "")),
        "if_primary_term": str(body.get("_primary_term", "")),
    }
