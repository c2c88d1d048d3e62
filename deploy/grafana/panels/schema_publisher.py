"""The dashboard of the schema-publisher."""

from __future__ import annotations

from panels.panel import Dashboard, Panel, process, selected

DASHBOARD = Dashboard(
    "headrace-schema-publisher",
    "Headrace: schema-publisher",
    (
        *process("schema-publisher"),
        Panel("Tables", "short", {"{{source}}": selected("headrace_tables")}),
        Panel(
            "Schemas written", "short", {"{{source}}": selected("headrace_schemas_published_total")}
        ),
    ),
)
