"""Finds the connection that reads a slot, and whether it belongs to this suite.

A suite has an identity, stored in its state bucket. Its wal-reader connects with a name that
contains it, so that only this suite ever ends that connection: another suite on the same slot uses
another NATS, where this suite can't be heard.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_HEADRACE = "headrace "
WAL_READER = f"{_HEADRACE}wal-reader"
# PostgreSQL truncates application names at 63 bytes.
IDENTITY = re.compile(r"[0-9a-f]{1,32}")
# The wait event of an idle walsender, which has read everything we sent.
_IDLE_WAITS = frozenset(
    {"WalSenderMain", "WalSenderWaitForWAL", "WalSenderWaitForWal", "WalSenderWriteData"}
)

# A role without pg_read_all_stats sees only the name of another role's connection. A process that
# is still creating the slot, waiting for long transactions, doesn't read yet; one that has ended
# since its pid was read no longer does. The slot's name, a literal or a parameter, belongs at the
# end.
QUERY = """
SELECT s.active_pid, a.application_name, pg_catalog.host(a.client_addr),
       pg_catalog.to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'),
       a.wait_event
FROM pg_catalog.pg_replication_slots s JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
WHERE s.confirmed_flush_lsn IS NOT NULL AND s.slot_name = """

REMEDY = (
    "A slot has one reader: choose another HEADRACE_SLOT and HEADRACE_PUB, or stop that reader."
)


@dataclass(frozen=True, slots=True)
class SlotReader:
    """The walsender that holds a slot; an idle one has read everything that was sent to it."""

    pid: int
    application: str = ""
    client: str | None = None
    since: str | None = None
    idle: bool = False

    @classmethod
    def of(cls, row: Sequence[object]) -> SlotReader:
        """A row of the query."""
        pid, application, client, since, wait = row
        whence, start = (None if value is None else str(value) for value in (client, since))
        return cls(int(str(pid)), str(application or ""), whence, start, idle=wait in _IDLE_WAITS)

    def belongs_to(self, identity: str) -> bool:
        """Whether it is provably a wal-reader of the suite with this identity."""
        return bool(identity) and self.application == application_name(identity)

    def is_foreign(self, identity: str) -> bool:
        """Whether it is another suite's wal-reader, or another program. An older wal-reader has no
        identity.

        A Headrace command is neither: it creates a slot, and holds it until that is on disk.
        """
        if self.application.startswith(_HEADRACE) and not self.is_suite:
            return False
        return self.application not in (WAL_READER, application_name(identity))

    @property
    def is_suite(self) -> bool:
        """Whether it is a wal-reader of any suite."""
        return self.application.split(" ")[:2] == WAL_READER.split(" ")

    def __str__(self) -> str:
        which = (
            f"{'another suite' if self.is_suite else 'another program'} (application "
            f'"{self.application}"'
        )
        whence = f", client {self.client}" if self.client else ""
        since = f", since {self.since}" if self.since else ""
        return f"{which}{whence}, process {self.pid}{since})"


def application_name(identity: str) -> str:
    """The name under which the wal-reader of this suite connects."""
    return f"{WAL_READER} {identity}".rstrip()
