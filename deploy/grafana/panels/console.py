"""The dashboard of the console."""

from __future__ import annotations

from panels.panel import Dashboard, Panel, process, rate, selected

DASHBOARD = Dashboard(
    "headrace-console",
    "Headrace: console",
    (
        *process("console"),
        Panel(
            "Requests",
            "ops",
            {"{{source}}": f"{rate('headrace_console_requests_total')} or on () vector(0)"},
        ),
        Panel(
            "Refused requests in ten minutes",
            "short",
            {
                "{{code}}": "sum by (code) (increase(headrace_console_refusals_total"
                '{source=~"$source"}[10m])) or on () vector(0)'
            },
            "sign_in: a missing or wrong token. HeadraceConsoleRefusals fires above 30.",
        ),
        Panel(
            "Acts in ten minutes",
            "short",
            {
                "{{act}}": "sum by (act) (increase(headrace_console_acts_total"
                '{source=~"$source"}[10m])) or on () vector(0)'
            },
            "The log of acts has who did what.",
        ),
        Panel(
            "Tabs that follow live",
            "short",
            {"{{source}}": f"{selected('headrace_console_live_tabs')} or on () vector(0)"},
        ),
        Panel(
            "Messages kept for tabs",
            "short",
            {"{{source}}": f"{selected('headrace_console_ring_messages')} or on () vector(0)"},
        ),
    ),
)
