"""The dashboard of the archiver."""

from __future__ import annotations

from panels.panel import Dashboard, Panel, process, rare, rate, selected

DASHBOARD = Dashboard(
    "headrace-archive",
    "Headrace: archive (archiver)",
    (
        *process("archiver"),
        Panel("Files", "ops", {"{{source}}": rate("headrace_archive_files_total")}),
        Panel("Changes", "ops", {"{{source}}": rate("headrace_archive_rows_total")}),
        Panel("Bytes", "Bps", {"{{source}}": rate("headrace_archive_bytes_total")}),
        Panel(
            "Changes not yet in a file",
            "short",
            {"{{source}}": selected("headrace_archive_waiting_rows")},
        ),
        Panel("Last file", "short", {"{{source}}": selected("headrace_archive_file_id")}),
        Panel(
            "Archived up to",
            "short",
            {"{{source}}": selected("headrace_archive_confirmed_lsn")},
        ),
        Panel(
            "Age of the oldest base",
            "s",
            # Zero without a base.
            {"{{source}}": f"{selected('headrace_archive_base_age_seconds')} or on () vector(0)"},
        ),
        Panel(
            "Gaps and recoveries",
            "short",
            {
                "gaps": rare("headrace_archive_gaps_total"),
                "recoveries": rare("headrace_archive_recoveries_total"),
            },
        ),
    ),
)
