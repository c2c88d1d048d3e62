"""The conditions of every history: nothing is lost, duplicated, reordered or confirmed too early; a
gap is always reported.

It judges by the commits, the content of the stream and the LSNs reported to PostgreSQL, never by
Headrace's own state. It reads events only by the contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgpack
import orjson

if TYPE_CHECKING:
    from tests.simulation.postgres import Cluster
    from tests.simulation.stream import Stored


class ViolationError(AssertionError):
    """A promise does not hold."""


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the stream: rows and emitted messages by number, or a gap, or a shape."""

    source: str
    numbers: tuple[tuple[int, str], ...] = ()
    # Of each of them, the columns of its row.
    columns: tuple[tuple[str, ...], ...] = ()
    gap: tuple[int, int, str] | None = None
    # The table whose shape it tells, and whether it asks for a copy.
    table: str = ""
    resync: bool = False


def lsn(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


# A history asks about each message again and again.
@lru_cache(maxsize=4096)
def said(payload: bytes) -> Said:
    """What a message says."""
    body: Any = orjson.loads(payload) if payload[:1] in (b"{", b"[") else msgpack.unpackb(payload)
    if isinstance(body, list):
        return _rows(body)
    operation = body["operation"]
    if operation == "GAP":
        return Said(body["source"], gap=(lsn(body["after"]), lsn(body["up_to"]), body["reason"]))
    if operation == "SCHEMA":
        return Said(body["source"], table=body["table"], resync=_wants_copy(body))
    return _rows([body])


def _rows(events: list[dict[str, Any]]) -> Said:
    return Said(
        events[0]["source"],
        tuple(_number(one) for one in events),
        tuple(tuple(one.get("data", ())) for one in events),
    )


def _wants_copy(body: dict[str, Any]) -> bool:
    first = any(change["change"] == "table_first_seen" for change in body["changes"])
    return bool(body["resync"]) or first


def _number(event: dict[str, Any]) -> tuple[int, str]:
    if event["operation"] == "MESSAGE":
        return int(event["content"]), "_message"
    return event["data"]["id"], event["table"]


@dataclass
class Truth:
    """The changes that one source committed, on the server that is its primary now."""

    # (commit LSN, number, lane), in commit order.
    changes: list[tuple[int, int, str]] = field(default_factory=list)
    # Of each change, by its number: the columns of its row.
    columns: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: Cluster, publication: str, begins: int, *, messages: bool) -> Truth:
        found = [
            (one.commit, change)
            for one in cluster.transactions
            if one.commit >= begins
            for change in one.changes_of(publication)
            if change.table is not None or messages
        ]
        return cls(
            [
                (commit, one.number, one.table.name if one.table else "_message")
                for commit, one in found
            ],
            {one.number: one.columns for _, one in found},
        )


def check_stream(truth: Truth, told: Iterable[Said], *, lanes: bool) -> None:
    """The stream has all of it once and in order, but for what its gaps say; `lanes`: in order by
    table only.
    """
    told = list(told)
    there = [one for message in told for one in message.numbers]
    numbers = [number for number, _ in there]
    if len(set(numbers)) != len(numbers):
        twice = sorted({number for number in numbers if numbers.count(number) > 1})
        raise ViolationError(f"changes {twice} are in the stream twice")
    known = {number: place for place, (_, number, _) in enumerate(truth.changes)}
    if foreign := [number for number in numbers if number not in known]:
        raise ViolationError(f"changes {foreign} are in the stream, and were never committed")
    for lane in {lane for _, lane in there} if lanes else {""}:
        places = [known[number] for number, of in there if lane in ("", of)]
        if places != sorted(places):
            raise ViolationError(f"changes are out of order: {numbers}")
    for message in told:
        for (number, _), columns in zip(message.numbers, message.columns, strict=True):
            if columns != truth.columns[number]:
                raise ViolationError(
                    f"change {number} has columns {truth.columns[number]}, published: {columns}"
                )
    there_numbers = set(numbers)
    missing = [one for one in truth.changes if one[1] not in there_numbers]
    if unsaid := [one for one in missing if not covered(one[0], gaps_of(told))]:
        raise ViolationError(
            f"changes {[number for _, number, _ in unsaid]} are lost, and in no gap"
        )


def gaps_of(told: Iterable[Said]) -> list[tuple[int, int, str]]:
    return [one.gap for one in told if one.gap is not None]


def covered(commit: int, gaps: Iterable[tuple[int, int, str]]) -> bool:
    return any(after <= commit < up_to for after, up_to, _ in gaps)


def by_source(stored: Iterable[Stored]) -> Iterator[tuple[Stored, Said]]:
    for one in stored:
        yield one, said(one.payload)
