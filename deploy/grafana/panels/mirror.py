"""The dashboard of the mirrors."""

from __future__ import annotations

from panels.panel import Dashboard, Panel, away, process, rare, rate, selected

DASHBOARD = Dashboard(
    "headrace-mirror",
    "Headrace: mirror",
    (
        *process("mirror"),
        Panel(
            "Messages not yet in the mirror",
            "short",
            {"{{source}}": selected("headrace_mirror_behind_messages")},
            "Includes messages of tables that the mirror doesn't follow.",
        ),
        Panel(
            "Age of the oldest of these",
            "s",
            {"{{source}}": selected("headrace_mirror_behind_seconds")},
        ),
        Panel("Events", "ops", {"{{source}}": rate("headrace_mirror_events_total")}),
        Panel(
            "Rows copied by bootstraps", "ops", {"{{source}}": rate("headrace_mirror_rows_total")}
        ),
        Panel(
            "Tables",
            "short",
            {
                "followed {{source}}": selected("headrace_mirror_tables"),
                "not followed {{source}}": selected("headrace_mirror_unfollowed"),
                "parked {{source}}": selected("headrace_mirror_parked"),
            },
            "Parked: the target rejects the table. The mirror's log gives the reason.",
        ),
        Panel(
            "Readers see the same moment for",
            "s",
            {"{{source}}": selected("headrace_mirror_standing_seconds")},
            "While a visible table is copied again.",
        ),
        Panel(
            "Bootstraps",
            "short",
            {
                "running {{source}}": selected("headrace_mirror_bootstrapping"),
                "waiting {{source}}": selected("headrace_mirror_waiting"),
                "done {{source}}": rare("headrace_mirror_bootstraps_total"),
            },
        ),
        Panel(
            "Target unavailable",
            "bool_yes_no",
            {"{{source}}": away("mirror", "target")},
            kind="state-timeline",
        ),
        Panel(
            "Copied again",
            "short",
            {
                "rows that were missing": rare("headrace_mirror_mismatches_total"),
                "fallen behind the stream": rare("headrace_mirror_retention_gaps_total"),
            },
        ),
        Panel("Stream read up to", "short", {"{{source}}": selected("headrace_mirror_stream_seq")}),
        Panel("Committed up to", "short", {"{{source}}": selected("headrace_mirror_lsn")}),
    ),
)
