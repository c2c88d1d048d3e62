"""The dashboard of the snapshot-responder and its snapshots."""

from __future__ import annotations

from panels.panel import Dashboard, Panel, process, rare, rate, selected

_PROGRESS = " / ".join(
    selected(f"headrace_snapshot_{rows}_rows") for rows in ("progress", "estimated")
)


def _durations(share: float) -> str:
    buckets = selected("headrace_snapshot_seconds_bucket")
    return f"histogram_quantile({share}, sum by (le) (increase({buckets}[1h])))"


DASHBOARD = Dashboard(
    "headrace-snapshots",
    "Headrace: snapshots (snapshot-responder)",
    (
        *process("snapshot-responder"),
        Panel(
            "Snapshots",
            "short",
            {
                "requested {{source}}": selected("headrace_snapshots_requested_total"),
                "completed {{source}}": selected("headrace_snapshots_completed_total"),
                "failed {{source}}": rare("headrace_snapshots_failed_total"),
            },
        ),
        Panel(
            "Running and waiting",
            "short",
            {
                "running {{source}}": selected("headrace_snapshots_running"),
                "requests held {{source}}": selected("headrace_snapshot_requests_held"),
            },
        ),
        Panel("Rows", "ops", {"{{source}}": rate("headrace_snapshot_rows_total")}),
        Panel(
            "Progress of running snapshots",
            "percentunit",
            {"{{table}}": f"{_PROGRESS} or on () vector(0)"},
        ),
        Panel(
            "Duration",
            "s",
            {f"p{share:g}": _durations(share / 100) for share in (50, 99)},
        ),
        Panel(
            "Spark", "short", {"{{state}}": selected("headrace_spark_state")}, kind="state-timeline"
        ),
        Panel("Spark lost", "short", {"{{source}}": rare("headrace_spark_losses_total")}),
    ),
)
