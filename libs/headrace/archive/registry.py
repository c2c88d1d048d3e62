"""Registered readers: small objects next to the files that record which file each reads next.

A reader registers so that garbage collection keeps files that it has not read. It never resumes
from the position here, but from the one stored with its own output. An outdated entry only keeps
files longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

from headrace.archive import layout
from headrace.archive.errors import WalFileCorruptError
from headrace.archive.store import Fetched, Get, Names, ObjectMetadata, Store


@dataclass(frozen=True, slots=True)
class Registered:
    """A reader, the file it reads next, and when it reported that."""

    name: str
    next_id: int
    at: datetime


def register(store: Store, name: str, next_id: int) -> None:
    """Report that files from `next_id` on are still needed; repeat as the reader progresses."""
    body = {"next_id": next_id, "at": datetime.now(UTC).isoformat()}
    store.put(layout.reader_name(name), orjson.dumps(body))


def unregister(store: Store, name: str) -> None:
    """Remove the registration."""
    store.delete(layout.reader_name(name))


def registered(store: Store) -> list[Registered]:
    """Every reader that has registered."""
    # A listing continues after the folder: `_read` skips what is not in it.
    found: list[ObjectMetadata] = store.ask(Names(f"{layout.READERS}/")) or []
    return [reader for item in found if (reader := _read(store, item.location)) is not None]


def _read(store: Store, location: str) -> Registered | None:
    folder, _, file = location.partition("/")
    if folder != layout.READERS or not file.endswith(".json"):
        return None
    fetched: Fetched | None = store.ask(Get(location))
    # It has unregistered since.
    if fetched is None:
        return None
    try:
        body = orjson.loads(fetched.data)
        return Registered(
            file.removesuffix(".json"), int(body["next_id"]), datetime.fromisoformat(body["at"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WalFileCorruptError(
            f"{location} does not contain its reader's position",
            remedy="Let the reader register again, or remove the object.",
        ) from error
