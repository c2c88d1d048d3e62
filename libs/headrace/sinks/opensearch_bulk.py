"""Bulk requests of bounded size, with the answer for each document.

Promises: it returns only if each action is done: stored, or refused by the server because it has a
later version. A document that the server will never accept raises `RefusedError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.process.failpoint import failpoint
from headrace.sinks.opensearch_client import Client, Pauses, is_blocked, part, reason
from headrace.sinks.opensearch_indices import delete_line, index_line
from headrace.sinks.opensearch_names import is_open_ended
from headrace.sinks.opensearch_pending import RowAction
from headrace.sinks.port import RefusedError, SinkAwayError, SinkError
from headrace.sinks.routing import Record

# Of one request for former documents.
_READ = 200
_OVERTAKEN = 409
# 404 answers the deletion of a document that is not there, after a repetition for example.
_DONE = frozenset({200, 201, 404, _OVERTAKEN})
_BUSY = frozenset({429, 503})

RowActions = Mapping[str, Mapping[str, RowAction]]


@dataclass(slots=True)
class _Line:
    data: bytes
    # None for a document that is copied from one index to another, or repaired.
    record: Record | None = None


class Bulk:
    """Writes actions of one session."""

    def __init__(self, client: Client, bytes_max: int, document_bytes_max: int) -> None:
        self._client = client
        self._bytes_max = bytes_max
        self._document_bytes_max = document_bytes_max
        # Actions that the server refused, because the document has a later version.
        self.overtaken = 0

    async def write(self, actions: RowActions) -> None:
        """Write actions, by the index's writing alias and document.

        Rows that take values from a document under another key come first, and deletes last: while
        they are not done, the values are still there.
        """
        moved: list[_Line] = []
        stored: list[_Line] = []
        deleted: list[_Line] = []
        for writer, by_document in actions.items():
            done = await self._fill(writer, by_document)
            for document, action in by_document.items():
                equal = is_open_ended(action.version)
                if document in done:
                    continue
                if action.fields is None:
                    line = delete_line(writer, document, action.version, equal=equal)
                    deleted.append(_Line(line, action.record))
                    continue
                data = index_line(writer, document, action.version, self._body(action), equal=equal)
                is_moved = bool(action.origin) and action.origin != document
                (moved if is_moved else stored).append(_Line(data, action.record))
        for lines in (moved, stored, deleted):
            if lines:
                await self._send(lines)
                failpoint("sink.half_written")

    def _body(self, action: RowAction) -> bytes:
        try:
            body = action.body()
        except TypeError as error:
            raise RefusedError(action.record, "JSON can't hold a number of it") from error
        if len(body) > self._document_bytes_max:
            raise RefusedError(
                action.record, f"{len(body)} bytes are more than `document_bytes_max`"
            )
        return body

    async def _fill(self, writer: str, by_document: Mapping[str, RowAction]) -> set[str]:
        """Take values that events lack from the documents; returns those that are done already."""
        asking = {document: action for document, action in by_document.items() if action.missing}
        wanted = sorted({*asking, *(action.origin for action in asking.values())})
        found: dict[str, Any] = {}
        for first in range(0, len(wanted), _READ):
            ids = {"ids": wanted[first : first + _READ]}
            answer = await self._client.ask("POST", f"/{part(writer)}/_mget", ids)
            for one in answer.body["docs"]:
                if one.get("error"):
                    raise SinkAwayError(f"{self._client.where} can't read {writer} now")
                if one.get("found"):
                    found[one["_id"]] = one
        done = set()
        for document, action in asking.items():
            # A former attempt may have written this version already, or a later one.
            own = found.get(document)
            if own is not None and own["_version"] >= action.version:
                done.add(document)
                continue
            origin = found.get(action.origin)
            if origin is not None and origin["_version"] >= action.version:
                # It is of another row, which has the key now.
                origin = None
            action.fill(origin)
        return done

    async def send_lines(self, lines: Sequence[bytes]) -> None:
        """Write lines that are no records."""
        await self._send([_Line(one) for one in lines])

    async def _send(self, lines: Sequence[_Line]) -> None:
        for batch in self._batches(lines):
            await self._until_done(batch)

    def _batches(self, lines: Iterable[_Line]) -> Iterator[list[_Line]]:
        batch: list[_Line] = []
        size = 0
        for line in lines:
            if batch and size + len(line.data) > self._bytes_max:
                yield batch
                batch, size = [], 0
            batch.append(line)
            size += len(line.data)
        if batch:
            yield batch

    async def _until_done(self, batch: list[_Line]) -> None:
        """Send a batch, and again what the server was too busy for."""
        patience = Pauses(self._client.where)
        while True:
            busy = await self._attempt(batch)
            if not busy:
                return
            # Some progress: the server is slow and not stuck.
            if len(busy) < len(batch):
                patience = Pauses(self._client.where)
            batch = busy
            await patience.pause("it is too busy")

    async def _attempt(self, batch: list[_Line]) -> list[_Line]:
        """Send a batch once; returns the lines for which the server is too busy."""
        answer = await self._client.ask(
            "POST",
            "/_bulk",
            b"".join(line.data for line in batch),
            accept=(413,),
            # No request creates an index by accident.
            require_alias="true",
            # The whole answer would repeat the index, the ID and the version of every document.
            filter_path="items.*.status,items.*.error",
        )
        if answer.status == 413:
            return await self._halved(batch)
        items = [next(iter(one.values())) for one in answer.body["items"]]
        busy = []
        for line, item in zip(batch, items, strict=True):
            self.overtaken += item["status"] == _OVERTAKEN
            if item["status"] in _BUSY:
                busy.append(line)
            elif item["status"] not in _DONE or _is_gone(item):
                raise self._failed(line, item)
        return busy

    async def _halved(self, batch: list[_Line]) -> list[_Line]:
        """A server, or a proxy, takes smaller requests only."""
        if len(batch) == 1:
            record = batch[0].record
            size = f"the server does not accept a request of {len(batch[0].data)} bytes"
            if record is None:
                raise SinkError(size, remedy="Raise http.max_content_length.")
            raise RefusedError(record, size)
        middle = len(batch) // 2
        await self._until_done(batch[:middle])
        await self._until_done(batch[middle:])
        return []

    def _failed(self, line: _Line, item: Mapping[str, Any]) -> SinkError:
        said = reason(item)
        if _is_gone(item):
            # Another process has replaced it, or someone has removed it.
            return SinkAwayError(f"{self._client.where}: an index of the sink was removed")
        if item["status"] >= 500 or is_blocked(item):
            return SinkAwayError(f"{self._client.where} can't store documents now: {said}")
        if line.record is None:
            return SinkError(
                f"{self._client.where} does not accept a document: {said}",
                remedy="Copy the table again with `headrace sinks reset NAME --to snapshot`.",
            )
        return RefusedError(line.record, said)


def _is_gone(item: Mapping[str, Any]) -> bool:
    """Whether the index does not exist; a document that does not exist is no error."""
    return item["status"] == 404 and bool(item.get("error"))
