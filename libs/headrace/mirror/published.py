"""The tables that the source publishes: the keys of the schemas bucket.

Promises that a table with a key is found, now or at the next call. Leaves no consumer on the
server, unlike listing a bucket's keys by a watch.
"""

from __future__ import annotations

from collections.abc import Callable

from nats.aio.client import Client
from nats.js.errors import NotFoundError


class Published:
    def __init__(self, client: Client, bucket: str) -> None:
        self._js = client.jetstream()
        self._bucket = bucket

    async def tokens(self, asked: Callable[[str], bool]) -> list[str]:
        """The tokens of the tables that are wanted."""
        prefix = f"$KV.{self._bucket}."
        try:
            bucket = await self._js.key_value(self._bucket)
            state = (
                await self._js.stream_info(f"KV_{self._bucket}", subjects_filter=f"{prefix}>")
            ).state
        except NotFoundError:
            return []
        found = []
        for token in sorted(subject.removeprefix(prefix) for subject in state.subjects or {}):
            if not asked(token):
                continue
            try:
                await bucket.get(token)
            except NotFoundError:
                # Deleted: its last message is a delete marker.
                continue
            found.append(token)
        return found
