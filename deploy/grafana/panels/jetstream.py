"""The dashboard of the streams and their durable consumers."""

from __future__ import annotations

from panels.panel import Dashboard, Panel, selected

DASHBOARD = Dashboard(
    "headrace-jetstream",
    "Headrace: JetStream",
    (
        Panel("Messages", "short", {"{{stream}}": selected("headrace_stream_messages")}),
        Panel("Bytes", "bytes", {"{{stream}}": selected("headrace_stream_bytes")}),
        Panel(
            "Published",
            "ops",
            {
                "{{stream}}": f"sum by (stream) (rate({selected('headrace_stream_last_seq')}[$__rate_interval]))"
            },
        ),
        Panel("Maximum size", "bytes", {"{{stream}}": selected("headrace_stream_max_bytes")}),
        Panel("Maximum age", "s", {"{{stream}}": selected("headrace_stream_max_age_seconds")}),
        Panel("Consumers", "short", {"{{stream}}": selected("headrace_stream_consumers")}),
        Panel(
            "Durable consumers: pending",
            "short",
            {
                "{{stream}} {{consumer}}": f"{selected('headrace_consumer_pending_messages')} or on () vector(0)"
            },
        ),
        Panel(
            "Durable consumers: not acknowledged",
            "short",
            {
                "{{stream}} {{consumer}}": f"{selected('headrace_consumer_unacknowledged_messages')} or on () vector(0)"
            },
        ),
        Panel(
            "Durable consumers: behind by",
            "s",
            {
                "{{stream}} {{consumer}}": f"{selected('headrace_consumer_lag_seconds')} or on () vector(0)"
            },
        ),
        Panel(
            "Durable consumers: retention left",
            "percentunit",
            {
                "{{stream}} {{consumer}}": f"{selected('headrace_consumer_left_ratio')} or on () vector(1)"
            },
        ),
        Panel(
            "Durable consumers: time until events are lost",
            "s",
            {
                "{{stream}} {{consumer}}": f"{selected('headrace_consumer_left_seconds')} or on () vector(Inf)"
            },
        ),
        Panel(
            "Durable consumers: lost messages",
            "short",
            {
                "{{stream}} {{consumer}}": f"{selected('headrace_consumer_lost_messages')} or on () vector(0)"
            },
        ),
    ),
)
