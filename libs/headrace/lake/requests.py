"""Requests to the lake's writer: copy a table again, or make no cut for a moment.

A request is a note in the catalog. The writer takes it before its next step, whenever it runs, and
notes there how far it is.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum

import orjson

from headrace.lake.catalog import Catalog, TableName

KIND = "copy-request"
HOLD_KIND = "hold"
# The writer ends a hold after this time, so that a command that dies stops it only briefly.
HOLD_S = 60.0


class RequestState(StrEnum):
    """How far a request is."""

    WAITING = "waiting"
    COPYING = "copying"
    # Copied, and waiting for the first cut that contains the copy.
    COPIED = "copied"
    DONE = "done"
    REFUSED = "refused"


OPEN = frozenset({RequestState.WAITING, RequestState.COPYING, RequestState.COPIED})


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A request to copy a table again, and its outcome so far."""

    namespace: str
    name: str
    state: RequestState = RequestState.WAITING
    rows: int = 0
    # The cut that contains the copy.
    cut: int = 0
    # Why it was refused.
    reason: str = ""
    asked: float = field(default_factory=time.time)
    # Tells it from an earlier request for the same table.
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def table(self) -> TableName:
        """The table to copy."""
        return TableName(self.namespace, self.name)

    @property
    def open(self) -> bool:
        """Whether the writer has something to do for it."""
        return self.state in OPEN


def ask(catalog: Catalog, source: str, table: TableName) -> CopyRequest:
    """Ask for a copy; takes the place of an earlier request for the table."""
    request = CopyRequest(table.namespace, table.name)
    _write(catalog, source, request)
    return request


def requests(catalog: Catalog, source: str) -> Mapping[TableName, CopyRequest]:
    """The last request for each table."""
    found = {}
    for body in catalog.notes(source, KIND).values():
        facts = orjson.loads(body)
        request = CopyRequest(**{**facts, "state": RequestState(facts["state"])})
        found[request.table] = request
    return found


def report(catalog: Catalog, source: str, request: CopyRequest) -> None:
    """Note how far a request is, unless another one has taken its place."""
    known = requests(catalog, source).get(request.table)
    if known is not None and known.id == request.id:
        _write(catalog, source, request)


@contextmanager
def held(catalog: Catalog, source: str) -> Iterator[None]:
    """Ask the writer to make no cut for a while: another one's would be refused each time."""
    name = secrets.token_hex(8)
    catalog.note(source, HOLD_KIND, name, "{}")
    try:
        yield
    finally:
        catalog.note(source, HOLD_KIND, name, None)


def holds(catalog: Catalog, source: str) -> Collection[str]:
    """The names of the present holds, and of those that a killed command left."""
    return catalog.notes(source, HOLD_KIND).keys()


def _write(catalog: Catalog, source: str, request: CopyRequest) -> None:
    catalog.note(source, KIND, _name(request.table), orjson.dumps(asdict(request)).decode())


def _name(table: TableName) -> str:
    # A name may contain dots.
    return orjson.dumps([table.namespace, table.name]).decode()
