"""A table's schema in the bucket, and when it must be written again. Pure.

Promises that only a change of content causes a write: neither the time nor the version is content.
The version comes from the publisher's schema events if there are any; until then it is counted
here, starting at 1 and incremented at each change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace.contract.events import Payload
from headrace.contract.subjects_and_ids import table_token
from headrace.contract.values import Encoding
from headrace.postgres.facts import PublishedColumn, PublishedTable

_NOT_CONTENT = frozenset({"timestamp", "version"})


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A published table: its key in the bucket, and its value's content."""

    token: str
    content: Payload

    @classmethod
    def of(
        cls,
        source: str,
        table: PublishedTable,
        columns: Iterable[PublishedColumn],
        primary_key: Iterable[str],
    ) -> TableSchema:
        content: Payload = {
            "table": table.name,
            "schema": f"{table.schema}.{table.name}",
            "columns": [_shown(column) for column in columns],
            "primary_key": list(primary_key),
            "replica_identity": table.replica_identity,
            "relation_id": table.relation_id,
            "source": source,
        }
        return cls(table_token(table.schema, table.name), content)


def _shown(column: PublishedColumn) -> Payload:
    shown = asdict(column)
    if column.base_type is None:
        del shown["base_type"]
    return shown


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """A key of the bucket: its value (None if deleted), the encoding of that, and the revision that
    a write replaces.
    """

    value: Mapping[str, Any] | None
    encoding: Encoding
    revision: int

    @property
    def version(self) -> int:
        version = self.value.get("version") if self.value else None
        if isinstance(version, int):
            return version
        return 0


# Revision 0: JetStream accepts the write only if the key has no revision yet.
ABSENT = StoredSchema(None, Encoding.MSGPACK, 0)


def changed(stored: StoredSchema, content: Payload) -> bool:
    """Whether the value differs from the table's current schema."""
    if stored.value is None:
        return True
    return {key: value for key, value in stored.value.items() if key not in _NOT_CONTENT} != content


def version_of(stored: StoredSchema, content: Payload, told: int | None) -> int:
    """The version to write: `told` by a schema event, else incremented if something changed."""
    # The publisher is the authority for versions (docs/adr/0008).
    if told is not None:
        return told
    if changed(stored, content):
        return stored.version + 1
    return stored.version


def value(content: Payload, version: int, timestamp: int) -> Payload:
    """The bridge's keys first, in its order."""
    head = {"table": content["table"], "schema": content["schema"], "timestamp": timestamp}
    return {
        **head,
        **{key: item for key, item in content.items() if key not in head},
        "version": version,
    }


def is_of(stored: StoredSchema, source: str) -> bool:
    """Whether this source may delete the key: suites may share the bucket."""
    return stored.value is not None and stored.value.get("source") == source
