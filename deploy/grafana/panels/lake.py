"""The dashboard of the lake-writer."""

from __future__ import annotations

from panels.panel import Dashboard, Panel, process, quantile, rare, rate, selected

DASHBOARD = Dashboard(
    "headrace-lake",
    "Headrace: lake (lake-writer)",
    (
        *process("lake-writer"),
        Panel(
            "Age of the oldest archive file that no cut shows",
            "s",
            {"{{source}}": selected("headrace_lake_lag_seconds")},
        ),
        Panel(
            "Log between the last cut and its end",
            "bytes",
            {"{{source}}": selected("headrace_lake_lag_bytes")},
        ),
        Panel("Changes applied", "ops", {"{{source}}": rate("headrace_lake_rows_total")}),
        Panel("Cuts", "ops", {"{{source}}": rate("headrace_lake_cuts_total")}),
        Panel(
            "Duration of a cut",
            "s",
            {
                f"p{share:g}": quantile(share / 100, "headrace_lake_cut_seconds")
                for share in (50, 99)
            },
        ),
        Panel(
            "Files",
            "short",
            {
                "data {{source}}": selected("headrace_lake_data_files"),
                "deletes {{source}}": selected("headrace_lake_delete_files"),
            },
        ),
        Panel(
            "Deleted share of the rows in data files",
            "percentunit",
            {"{{source}}": selected("headrace_lake_deleted_ratio")},
            "Queries read deleted rows, too. Compaction removes them.",
        ),
        Panel(
            "Archive files that no cut shows",
            "short",
            {"{{source}}": selected("headrace_lake_behind_files")},
        ),
        Panel(
            "Tables, parked tables, copies, recoveries",
            "short",
            {
                "tables": selected("headrace_lake_tables"),
                "copies": rare("headrace_lake_copies_total"),
                "parked": selected("headrace_lake_parked_tables"),
                "recoveries": rare("headrace_lake_recoveries_total"),
            },
        ),
        Panel(
            "Rows of the current or last copy",
            "short",
            {"{{source}}": f"{selected('headrace_lake_copied_rows')} or on () vector(0)"},
        ),
        Panel("Last cut shows", "short", {"{{source}}": selected("headrace_lake_lsn")}),
    ),
)
