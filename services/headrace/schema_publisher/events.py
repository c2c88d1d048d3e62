"""Reads the publisher's schema events for each table's version.

Promises: knows, after a restart too, the latest version that the CDC stream contains for each table
of this source, and wakes waiting tasks when one arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from nats.aio.client import Client
from nats.js.api import DeliverPolicy

from headrace.contract.subjects_and_ids import table_token
from headrace.jetstream.schema_events import follow_schema_events
from headrace.process.lifecycle import Scope
from headrace.settings import Settings


class SchemaEvents:
    """`told` by token; `news` is set whenever it changed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.told: dict[str, int] = {}
        self.news = asyncio.Event()

    async def follow(self, scope: Scope, client: Client) -> None:
        # One subject for each table, so the latest version of each; a restart reads them again.
        latest = DeliverPolicy.LAST_PER_SUBJECT
        await follow_schema_events(scope, client, self._settings, latest, self._note)

    def _note(self, event: Mapping[str, Any]) -> None:
        token = table_token(event["schema"], event["table"])
        version = int(event["version"])
        # A recreated consumer delivers known versions again, which are no news.
        if self.told.get(token) != version:
            self.told[token] = version
            self.news.set()
