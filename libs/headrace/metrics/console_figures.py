"""The metrics of the console. Pure."""

from __future__ import annotations

from headrace.metrics.figure import CONSOLE, Figure

CONSOLE_FIGURES = (
    Figure("console_requests", "counter", "Requests that the console answered", CONSOLE),
    Figure(
        "console_refusals",
        "counter",
        "Requests that the console refused, by reason",
        CONSOLE,
        labels=("code",),
    ),
    Figure("console_acts", "counter", "Acts through the console", CONSOLE, labels=("act",)),
    Figure("console_live_tabs", "gauge", "Tabs that follow live", CONSOLE),
    Figure("console_ring_messages", "gauge", "Messages kept for tabs that follow", CONSOLE),
)
