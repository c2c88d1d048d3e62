"""The metrics of the wal-archiver. Pure."""

from __future__ import annotations

from headrace.metrics.figure import WAL_ARCHIVER, Figure

BACKUP_FIGURES = (
    Figure("backup_log_bytes", "counter", "Bytes of the log stored", WAL_ARCHIVER),
    Figure("backup_log_objects", "counter", "Objects with parts of the log stored", WAL_ARCHIVER),
    Figure("backup_stored_lsn", "gauge", "LSN up to which the log is stored", WAL_ARCHIVER),
    Figure(
        "backup_unstored_bytes",
        "gauge",
        "Bytes of the log that only the server has: what would be lost with its disk",
        WAL_ARCHIVER,
    ),
    Figure(
        "backup_lag_seconds",
        "gauge",
        "Age of the last moment up to which everything is stored",
        WAL_ARCHIVER,
    ),
    Figure(
        "backup_stored_timestamp_seconds",
        "gauge",
        "Time of the server up to which everything that was committed is stored",
        WAL_ARCHIVER,
    ),
    Figure("backup_holes", "gauge", "Holes in the stored log", WAL_ARCHIVER),
    Figure(
        "backup_age_seconds",
        "gauge",
        "Age of the newest base backup; missing if there is none",
        WAL_ARCHIVER,
    ),
    Figure(
        "backup_drill_age_seconds",
        "gauge",
        "Age of the last drill that passed; missing if none ever did",
        WAL_ARCHIVER,
    ),
    Figure(
        "backup_drill_failed",
        "gauge",
        "Whether the last drill failed (1) or passed (0); missing if there was none",
        WAL_ARCHIVER,
    ),
    Figure(
        "backup_recoveries",
        "counter",
        "Times that the wal-archiver started again from what is stored",
        WAL_ARCHIVER,
    ),
)
