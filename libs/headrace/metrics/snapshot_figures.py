"""The metrics of the snapshot-responder. Pure."""

from __future__ import annotations

from headrace.metrics.figure import LONG_SECONDS, RESPONDER, Figure

SNAPSHOT_FIGURES = (
    Figure("snapshots_requested", "counter", "Snapshot requests accepted", RESPONDER),
    Figure("snapshots_completed", "counter", "Snapshots completed", RESPONDER),
    Figure(
        "snapshots_without_spark",
        "counter",
        "Snapshots of small tables completed while no Spark was running",
        RESPONDER,
    ),
    Figure("snapshots_failed", "counter", "Snapshots that failed", RESPONDER),
    Figure("snapshots_running", "gauge", "Snapshots running", RESPONDER),
    Figure(
        "snapshot_requests_held",
        "gauge",
        "Requests waiting for their snapshot to finish",
        RESPONDER,
    ),
    Figure("snapshot_rows", "counter", "Rows in completed snapshots", RESPONDER),
    Figure(
        "snapshot_seconds",
        "histogram",
        "Duration of completed snapshots",
        RESPONDER,
        bounds=LONG_SECONDS,
    ),
    Figure(
        "snapshot_progress_rows",
        "gauge",
        "Rows copied so far by a running snapshot",
        RESPONDER,
        ("table",),
    ),
    Figure(
        "snapshot_estimated_rows",
        "gauge",
        "Estimated total rows of a running snapshot",
        RESPONDER,
        ("table",),
    ),
    Figure(
        "spark_state",
        "gauge",
        "1 for the state of Spark: stopped, starting, running",
        RESPONDER,
        ("state",),
    ),
    Figure(
        "spark_losses", "counter", "Times that Spark's driver was lost during a snapshot", RESPONDER
    ),
)
