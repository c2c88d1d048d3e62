"""The metrics of the lake-writer. Pure."""

from __future__ import annotations

from headrace.metrics.figure import LAKE, SECONDS, Figure

LAKE_FIGURES = (
    Figure("lake_cuts", "counter", "Cuts made of the lake", LAKE),
    Figure("lake_cut_seconds", "histogram", "Time to write and commit a cut", LAKE, bounds=SECONDS),
    Figure("lake_rows", "counter", "Archived changes applied to the lake", LAKE),
    Figure("lake_lsn", "gauge", "LSN that the lake's last cut shows", LAKE),
    Figure("lake_tables", "gauge", "Tables in the lake", LAKE),
    Figure("lake_parked_tables", "gauge", "Tables that can't be copied into the lake", LAKE),
    Figure("lake_copies", "counter", "Tables copied into the lake", LAKE),
    Figure("lake_copied_rows", "gauge", "Rows of the current or last copy so far", LAKE),
    Figure("lake_behind_files", "gauge", "Archive files that no cut shows yet", LAKE),
    Figure(
        "lake_lag_seconds", "gauge", "Age of the oldest of these files; 0 if there is none", LAKE
    ),
    Figure(
        "lake_lag_bytes",
        "gauge",
        "Bytes of the source's log between the last cut and the log's end",
        LAKE,
    ),
    Figure("lake_data_files", "gauge", "Data files of all tables of the lake", LAKE),
    Figure("lake_delete_files", "gauge", "Delete files of all tables of the lake", LAKE),
    Figure(
        "lake_deleted_ratio",
        "gauge",
        "Share of the rows in data files that are deleted, from 0 to 1",
        LAKE,
    ),
    Figure("lake_compacted_files", "counter", "Data files that compaction has rewritten", LAKE),
    Figure("lake_compacted_bytes", "counter", "Bytes that compaction has read", LAKE),
    Figure("lake_removed_files", "counter", "Files removed because nothing refers to them", LAKE),
    Figure(
        "lake_upkeep_seconds",
        "histogram",
        "Time of a step of compaction or cleanup",
        LAKE,
        bounds=SECONDS,
    ),
    Figure(
        "lake_recoveries",
        "counter",
        "Times that the lake-writer started again from the last cut",
        LAKE,
    ),
)
