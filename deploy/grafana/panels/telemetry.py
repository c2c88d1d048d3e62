"""The dashboard of telemetry."""

from __future__ import annotations

from panels.panel import Dashboard, Panel, process, selected

DASHBOARD = Dashboard(
    "headrace-telemetry",
    "Headrace: telemetry",
    (
        *process("telemetry"),
        Panel(
            "Reporting services",
            "bool_yes_no",
            {"{{service}}": selected("headrace_up")},
            kind="state-timeline",
        ),
        Panel(
            "Versions",
            "short",
            {
                "{{service}} {{version}}": f"count by (service, version) ({selected('headrace_build_info')})"
            },
        ),
        Panel("Scrape duration", "s", {"{{instance}}": 'scrape_duration_seconds{job="headrace"}'}),
        Panel("Series", "short", {"{{instance}}": 'scrape_samples_scraped{job="headrace"}'}),
    ),
)
