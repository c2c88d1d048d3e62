"""The dashboard of all services of a source at a glance."""

from __future__ import annotations

from panels.panel import Dashboard, Panel, quantile, rare, rate, selected, stat

DASHBOARD = Dashboard(
    "headrace-overview",
    "Headrace: overview",
    (
        stat("Events per second", "ops", rate("headrace_cdc_events_total")),
        stat("Slot lag", "bytes", selected("headrace_lag_bytes")),
        stat("Delivery lag", "s", selected("headrace_lag_seconds")),
        stat("Slot is being read", "bool_yes_no", selected("headrace_slot_active")),
        stat("Services ready", "short", f"sum by (source) ({selected('headrace_ready')})"),
        stat(
            "Gaps",
            "short",
            rare("headrace_gaps_total"),
            "Changes that are lost. See the runbook HeadraceGap.",
        ),
        Panel("Events", "ops", {"{{source}}": rate("headrace_cdc_events_total")}),
        Panel(
            "Commit to acknowledgement",
            "s",
            {
                "p50 {{source}}": quantile(0.5, "headrace_ack_lag_seconds"),
                "p99 {{source}}": quantile(0.99, "headrace_ack_lag_seconds"),
            },
        ),
        Panel(
            "WAL behind and retained",
            "bytes",
            {
                "behind {{source}}": selected("headrace_lag_bytes"),
                "retained {{source}}": selected("headrace_retained_bytes"),
            },
        ),
        Panel(
            "Busiest tables",
            "ops",
            {"{{table}}": f"topk(10, {rate('headrace_table_events_total', by='table')})"},
        ),
        Panel(
            "Consumers: retention left",
            "percentunit",
            {"{{consumer}}": f"{selected('headrace_consumer_left_ratio')} or on () vector(1)"},
        ),
        Panel("Memory", "bytes", {"{{service}}": selected("headrace_memory_bytes")}),
        Panel(
            "Ready",
            "bool_yes_no",
            {"{{service}}": selected("headrace_ready")},
            kind="state-timeline",
            width=24,
        ),
    ),
)
