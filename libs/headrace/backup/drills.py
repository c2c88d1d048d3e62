"""The outcomes of drills in a store: when a restore was last tried, and how it ended.

An outcome's name says everything that the wal-archiver reports about it, so that its metrics cost
one listing. Never removes one: `expiry.py` does.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import orjson

from headrace.backup import layout
from headrace.backup.sealed import seal
from headrace.backup.store import BackupStore

_FORM = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"(\d{8}T\d{6}Z)-(passed|failed)-[0-9a-f]{6}\.zst")
# More are of no use to anybody.
KEPT_MAX = 100


@dataclass(frozen=True, slots=True)
class DrillOutcome:
    """One drill."""

    passed: bool
    # The first difference, or the error; empty if it passed.
    reason: str
    # Unknown if it failed before it had chosen them.
    backup: str
    moment: str
    # How many tables were compared.
    tables: int
    # From the beginning of the restore to a server that takes connections.
    seconds: float


@dataclass(frozen=True, slots=True)
class DrillRecord:
    """When a drill ended, and how."""

    time: datetime
    passed: bool
    # The object with its outcome.
    name: str


def note(store: BackupStore, outcome: DrillOutcome) -> None:
    """Store an outcome."""
    word = "passed" if outcome.passed else "failed"
    name = f"{datetime.now(UTC):{_FORM}}-{word}-{secrets.token_hex(3)}.zst"
    store.put_new(layout.DRILLS, name, seal(orjson.dumps(asdict(outcome))))


def listed(names: Sequence[str]) -> list[DrillRecord]:
    """The drills of these names, the oldest first."""
    found = []
    for name in sorted(names):
        match = _NAME.fullmatch(name)
        if match is not None:
            time = datetime.strptime(match[1], _FORM).replace(tzinfo=UTC)
            found.append(DrillRecord(time, match[2] == "passed", name))
    return found


def last_passed(records: Sequence[DrillRecord]) -> DrillRecord | None:
    """The newest drill that passed."""
    return next((one for one in reversed(records) if one.passed), None)
