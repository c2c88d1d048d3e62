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
    Figure("lake_copied_rows", "gauge", "Rows of the present or last copy so far", LAKE),
    Figure("lake_behind_files", "gauge", "Archive files that the lake has not applied yet", LAKE),
    Figure(
        "lake_recoveries",
        "counter",
        "Times that the lake-writer started again from the last cut",
        LAKE,
    ),
)
