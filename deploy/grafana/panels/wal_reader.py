"""The dashboard of the wal-reader."""

from __future__ import annotations

from panels.panel import Dashboard, Panel, process, rare, rate, selected

_UNCONFIRMED = " - ".join(
    selected(f"headrace_{end}_lsn", service="wal-reader") for end in ("received", "confirmed")
)

DASHBOARD = Dashboard(
    "headrace-wal-reader",
    "Headrace: wal-reader",
    (
        *process("wal-reader"),
        Panel("Messages read", "ops", {"{{source}}": rate("headrace_wal_messages_total")}),
        Panel("Bytes read", "Bps", {"{{source}}": rate("headrace_wal_bytes_total")}),
        Panel(
            "In flight and credit",
            "bytes",
            {
                "in flight {{source}}": selected("headrace_in_flight_bytes"),
                "credit {{source}}": selected("headrace_credit_bytes"),
            },
        ),
        Panel("Frames", "ops", {"{{source}}": rate("headrace_frames_sent_total")}),
        Panel(
            "Connections and epochs",
            "short",
            {
                "reconnections {{source}}": rare("headrace_pg_reconnects_total"),
                "epochs {{source}}": selected("headrace_epochs_total"),
            },
        ),
        Panel(
            "Received but not confirmed",
            "bytes",
            {"{{source}}": _UNCONFIRMED},
        ),
        Panel(
            "Optional confirmers dropped",
            "short",
            {"{{source}}": rare("headrace_confirmers_dropped_total")},
        ),
    ),
)
