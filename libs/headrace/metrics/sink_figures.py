"""The metrics of a sink's process. Pure."""

from __future__ import annotations

from headrace.metrics.figure import SECONDS, SINK, Figure

SINK_FIGURES = (
    Figure("sink_records", "counter", "Records that the sink wrote to its target", SINK),
    Figure("sink_transactions", "counter", "Transactions that the sink wrote completely", SINK),
    Figure("sink_commits", "counter", "Commits of records together with the marks", SINK),
    Figure("sink_commit_seconds", "histogram", "Time of a commit", SINK, bounds=SECONDS),
    Figure("sink_stream_seq", "gauge", "Stream sequence up to which all is committed", SINK),
    Figure("sink_behind_messages", "gauge", "Messages that the sink has not committed yet", SINK),
    Figure("sink_behind_seconds", "gauge", "Age of the oldest of these; 0 if there are none", SINK),
    Figure("sink_gaps", "counter", "Times that the stream had discarded unread events", SINK),
    Figure("sink_refused", "counter", "Times that the target refused a record", SINK),
    Figure("sink_parked", "counter", "Refused records that were parked", SINK),
    Figure("sink_recoveries", "counter", "Times that the sink started again from its marks", SINK),
)
