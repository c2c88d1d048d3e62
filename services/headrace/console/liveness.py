"""Which servers and services do not answer now, from telemetry's status. Pure.

People who look learn it sooner than telemetry decides it: alarms need a verdict that a busy
machine does not change, and a page must not show something as well that may have ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# An answer of PostgreSQL to a small query, and of NATS to a small request, takes milliseconds.
ANSWER_S = 1.0
REPORT_S_MIN = 2.0
REPORTS = 2
NO_ANSWER = "it does not answer"
NO_REPORT = "it does not report any more"
# The states of a service whose reports have ended.
SILENT = ("late", "silent")


def judged(status: Mapping[str, Any], interval_s: float) -> dict[str, Any]:
    """The status, without the look of health for what does not answer. `interval_s`: the time
    between a service's reports.
    """
    postgres = dict(status["postgres"])
    slot = status.get("slot")
    # An older telemetry does not say how long it has waited.
    if postgres["reachable"] and postgres.get("waiting_s", 0.0) > ANSWER_S:
        postgres |= {"reachable": False, "reason": NO_ANSWER}
        # Its last answer may be older than the end of the slot's reader.
        slot = {**slot, "active": False} if slot else None
    late_s = max(REPORT_S_MIN, REPORTS * interval_s)
    services = dict(status["services"])
    for name, service in services.items():
        if service["state"] != "silent" and service.get("age_s", 0.0) > late_s:
            services[name] = {**service, "state": "late"}
    return {**status, "postgres": postgres, "slot": slot, "services": services}


def silent(status: Mapping[str, Any]) -> dict[str, float]:
    """The services that do not report, and for how many seconds."""
    return {
        name: float(service.get("age_s", 0.0))
        for name, service in status["services"].items()
        if service["state"] in SILENT
    }
