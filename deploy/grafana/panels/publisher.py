"""The dashboard of the publisher."""

from __future__ import annotations

from panels.panel import Dashboard, Panel, process, quantile, rare, rate, selected

DASHBOARD = Dashboard(
    "headrace-publisher",
    "Headrace: publisher",
    (
        *process("publisher"),
        Panel("Events", "ops", {"{{source}}": rate("headrace_cdc_events_total")}),
        Panel(
            "Events by operation",
            "ops",
            {"{{operation}}": rate("headrace_table_events_total", by="operation")},
        ),
        Panel("Transactions", "ops", {"{{source}}": rate("headrace_transactions_total")}),
        Panel("Bytes", "Bps", {"{{source}}": rate("headrace_published_bytes_total")}),
        Panel(
            "Commit to acknowledgement",
            "s",
            {
                f"p{share:g}": quantile(share / 100, "headrace_ack_lag_seconds")
                for share in (50, 90, 99)
            },
        ),
        Panel(
            "WAL received but not acknowledged",
            "bytes",
            {f"p{share:g}": quantile(share / 100, "headrace_ack_lag_bytes") for share in (50, 99)},
        ),
        Panel(
            "Unacknowledged messages", "short", {"{{source}}": selected("headrace_window_messages")}
        ),
        Panel("Time per frame", "µs", {"{{source}}": selected("headrace_last_processing_time_us")}),
        Panel(
            "Already in the stream",
            "short",
            {
                "by position {{source}}": rare("headrace_skipped_events_total"),
                "by id {{source}}": rare("headrace_duplicates_refused_total"),
            },
        ),
        Panel(
            "Parked changes, gaps, recoveries",
            "short",
            {
                "parked {{source}}": rare("headrace_parked_messages_total"),
                "gaps {{source}}": rare("headrace_gaps_total"),
                "recoveries {{source}}": rare("headrace_recoveries_total"),
            },
        ),
        Panel(
            "Publishing method",
            "short",
            {"{{mode}}": selected("headrace_ingest_mode")},
            kind="state-timeline",
        ),
        Panel(
            "Paused",
            "bool_yes_no",
            {"{{source}}": selected("headrace_paused")},
            kind="state-timeline",
        ),
    ),
)
