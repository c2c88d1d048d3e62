"""The dashboard of PostgreSQL's slot."""

from __future__ import annotations

from panels.panel import Dashboard, Panel, quantile, selected, stat

DASHBOARD = Dashboard(
    "headrace-slot",
    "Headrace: PostgreSQL slot",
    (
        stat("PostgreSQL reachable", "bool_yes_no", selected("headrace_pg_reachable"), width=6),
        stat("Slot is being read", "bool_yes_no", selected("headrace_slot_active"), width=6),
        stat("Behind", "bytes", selected("headrace_lag_bytes"), width=6),
        stat("WAL retained for the slot", "bytes", selected("headrace_retained_bytes"), width=6),
        Panel(
            "Behind and retained",
            "bytes",
            {
                "behind {{source}}": selected("headrace_lag_bytes"),
                "retained {{source}}": selected("headrace_retained_bytes"),
            },
        ),
        Panel("WAL written", "Bps", {"{{source}}": selected("headrace_wal_rate_bytes")}),
        Panel(
            "WAL status",
            "short",
            {"{{status}}": selected("headrace_slot_wal_status")},
            kind="state-timeline",
        ),
        Panel(
            "Alarm level",
            "short",
            {"{{level}}": selected("headrace_wal_alarm")},
            kind="state-timeline",
        ),
        Panel(
            "Until the slot is lost",
            "s",
            {"{{source}}": f"{selected('headrace_slot_loss_seconds')} or on () vector(Inf)"},
            "At the current rate of WAL. Infinite while changes are delivered as fast as they are written.",
        ),
        Panel(
            "WAL until the limit",
            "bytes",
            {"{{source}}": f"{selected('headrace_safe_wal_bytes')} or on () vector(Inf)"},
            "Infinite without max_slot_wal_keep_size.",
        ),
        Panel(
            "Lag at each check",
            "bytes",
            {f"p{share:g}": quantile(share / 100, "headrace_slot_lag_bytes") for share in (50, 99)},
        ),
        Panel("End of the log", "short", {"{{source}}": selected("headrace_wal_lsn")}),
    ),
)
