"""Which services the suite's configuration asks for, as far as telemetry can see it.

Telemetry keeps what it knows of a silent service for as long as the configuration asks for it. It
sees the settings that all services share, the sinks' file if it has it, and the sinks' consumers on
the stream, which `headrace sinks apply` deletes. A place that can't be read proves nothing.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from headrace.audit.settings import load_audit
from headrace.errors import HeadraceError
from headrace.settings import Settings
from headrace.suite.services import (
    ARCHIVER,
    AUDIT_WRITER,
    LAKE_WRITER,
    SERVICES,
    SINK,
    SQL_SERVER,
    WAL_ARCHIVER,
)

# An editor may empty a file for a moment before it writes the new text.
REMOVED_S = 10.0
GONE_MAX = 1000
_SINK = f"{SINK.name}-"


class Asked(Enum):
    """Whether the configuration asks for a service."""

    YES = "yes"
    # It did, and does not any more.
    NO_LONGER = "no longer"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Evidence:
    """The sinks that one place names, and since when it has not named others any more."""

    names: frozenset[str] = frozenset()
    gone: dict[str, float] = field(default_factory=dict)

    def now(self, names: frozenset[str], at: float) -> None:
        """Take the names of this moment."""
        for name in self.names - names:
            self.gone[name] = at
            if len(self.gone) > GONE_MAX:
                del self.gone[min(self.gone, key=lambda one: self.gone[one])]
        for name in names:
            self.gone.pop(name, None)
        self.names = names

    def asked(self, name: str, now: float) -> Asked:
        if name in self.names:
            return Asked.YES
        if name not in self.gone:
            return Asked.UNKNOWN
        return Asked.NO_LONGER if now - self.gone[name] >= REMOVED_S else Asked.YES


@dataclass(slots=True)
class Configured:
    """The services that are asked for, and the sinks as they were last seen."""

    services: frozenset[str]
    file: Path
    source: str
    in_file: Evidence = field(default_factory=Evidence)
    on_stream: Evidence = field(default_factory=Evidence)
    # When the stream was created: another one has no consumers yet, which removes no sink.
    _stream: str = ""

    @classmethod
    def of(cls, settings: Settings, environ: Mapping[str, str]) -> Configured:
        """The services that these settings ask for."""
        optional = {
            ARCHIVER.name: bool(settings.archive.url),
            LAKE_WRITER.name: bool(settings.lake.url),
            WAL_ARCHIVER.name: bool(settings.backup.url),
            SQL_SERVER.name: settings.sql.enabled,
            AUDIT_WRITER.name: _asks_for_audit(environ),
        }
        names = {name for name, facts in SERVICES.items() if not facts.optional}
        names |= {name for name, asked in optional.items() if asked}
        return cls(frozenset(names), Path(settings.sinks.file), settings.source.slot)

    def asked(self, service: str, now: float) -> Asked:
        """Whether the configuration asks for a service."""
        if service in self.services:
            return Asked.YES
        if not service.startswith(_SINK):
            return Asked.UNKNOWN
        name = service.removeprefix(_SINK)
        # The file decides: a consumer stays until someone applies the file.
        by_file = self.in_file.asked(name, now)
        if by_file is not Asked.UNKNOWN:
            return by_file
        return self.on_stream.asked(name, now)

    async def look(self, now: float) -> None:
        """Read the sinks' file, if telemetry has it."""
        names = await asyncio.to_thread(_names, self.file)
        if names is not None:
            self.in_file.now(names, now)

    def consumers(self, created: str, names: frozenset[str], now: float) -> None:
        """Take the names of all durable consumers of the stream."""
        if created != self._stream:
            self._stream = created
            self.on_stream = Evidence()
        prefix = f"{_SINK}{self.source}-"
        found = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
        self.on_stream.now(frozenset(found), now)


def _asks_for_audit(environ: Mapping[str, str]) -> bool:
    try:
        return load_audit(environ).enabled
    except HeadraceError:
        # The audit-writer refuses this setting; telemetry has to show that it does not run.
        return True


def _names(file: Path) -> frozenset[str] | None:
    """The sinks that a file names; None if it can't be read."""
    try:
        tables = tomllib.loads(file.read_text()).get("sink", [])
        return frozenset(str(table["name"]) for table in tables)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
