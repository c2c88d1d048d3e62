"""The dashboard of the wal-archiver and its backups."""

from __future__ import annotations

from panels.panel import Dashboard, Panel, process, rare, rate, selected

DASHBOARD = Dashboard(
    "headrace-backup",
    "Headrace: backups (wal-archiver)",
    (
        *process("wal-archiver"),
        Panel(
            "Time that would be lost with the primary's disk",
            "s",
            {"{{source}}": selected("headrace_backup_lag_seconds")},
        ),
        Panel(
            "Log that only the server has",
            "bytes",
            {"{{source}}": selected("headrace_backup_unstored_bytes")},
        ),
        Panel(
            "Age of the newest base backup",
            "s",
            {"{{source}}": f"{selected('headrace_backup_age_seconds')} or on () vector(0)"},
            "0 if there is no base backup.",
        ),
        Panel(
            "Drills",
            "s",
            {
                "since one passed {{source}}": f"{selected('headrace_backup_drill_age_seconds')} or on () vector(0)"
            },
            "0: none ever did. A drill restores the cluster and compares it with the source.",
        ),
        Panel("Log stored", "Bps", {"{{source}}": rate("headrace_backup_log_bytes_total")}),
        Panel("Objects stored", "ops", {"{{source}}": rate("headrace_backup_log_objects_total")}),
        Panel(
            "Log is stored up to", "short", {"{{source}}": selected("headrace_backup_stored_lsn")}
        ),
        Panel(
            "Holes and recoveries",
            "short",
            {
                "holes {{source}}": f"{selected('headrace_backup_holes')} or on () vector(0)",
                "recoveries": rare("headrace_backup_recoveries_total"),
            },
            "Moments in a hole can't be restored. See the runbook HeadraceBackupHole.",
        ),
    ),
)
