"""The reasons that services give for not working, as far as a caller may read them. Pure.

Targets and databases quote values in their errors. Such a reason takes the right to the values of
all tables, and nobody sees it while columns are redacted: it can't be searched for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.console.access import Caller
from headrace.console.cells import Redaction

HIDDEN = "the reason is hidden, because it may quote values of rows; the service's log has it"
# The parts of a service that are about connections, leases and files only.
_PLAIN_PARTS = frozenset(
    {"start", "nats", "bus", "jetstream", "lease", "confirm", "publish", "store", "instructions"}
)
# Services that write no rows anywhere and read none from tables.
_PLAIN_SERVICES = frozenset(
    {"wal-reader", "schema-publisher", "wal-archiver", "telemetry", "console"}
)


def may_read_reasons(caller: Caller, redaction: Redaction) -> bool:
    """Whether reasons that may quote values are shown to them."""
    return caller.sees_everything and not redaction.patterns


def status_for(
    caller: Caller, redaction: Redaction, status: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Telemetry's status, without the reasons that this caller may not read."""
    if status is None or may_read_reasons(caller, redaction):
        return status
    services = {
        name: {**service, "reasons": _shown(name, service["reasons"])}
        for name, service in status["services"].items()
    }
    return {**status, "services": services}


def _shown(service: str, reasons: Mapping[str, Any]) -> dict[str, Any]:
    return {
        part: reason if service in _PLAIN_SERVICES or part in _PLAIN_PARTS else HIDDEN
        for part, reason in reasons.items()
    }
