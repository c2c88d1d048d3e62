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
    Figure("backup_holes", "gauge", "Holes in the stored log", WAL_ARCHIVER),
    Figure(
        "backup_recoveries",
        "counter",
        "Times that the wal-archiver started again from what is stored",
        WAL_ARCHIVER,
    ),
)
