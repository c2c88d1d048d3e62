"""Reads the publisher's schema events for changes that no row shows: rewritten tables.

Promises: knows, for each table of this source, the last LSN at which the stream says that it has to
be copied again. Reading an event twice says nothing new, so nothing has to be stored: what counts
is whether the table's copy is older than that LSN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nats.aio.client import Client
from nats.js.api import DeliverPolicy

from headrace.jetstream.schema_events import follow_schema_events
from headrace.lake.catalog import TableName
from headrace.process.lifecycle import Scope
from headrace.settings import Settings

# A table that is mentioned for the first time was copied already.
_NO_REWRITE = {"table_first_seen"}


class Rewrites:
    """`at` is the last LSN at which a table has to be copied again, by its name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.at: dict[TableName, int] = {}

    async def follow(self, scope: Scope, client: Client) -> None:
        await follow_schema_events(scope, client, self._settings, DeliverPolicy.ALL, self._note)

    def _note(self, event: Mapping[str, Any]) -> None:
        changes = {change["change"] for change in event["changes"]}
        if not event["resync"] or changes <= _NO_REWRITE:
            return
        name = TableName(event["schema"], event["table"])
        lsn = int(event["tx"]["lsn"])
        # An event that is read twice says nothing new.
        self.at[name] = max(lsn, self.at.get(name, 0))
