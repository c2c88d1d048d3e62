"""The dashboard of the sinks."""

from __future__ import annotations

from panels.panel import SINKS, Dashboard, Panel, away, process, rare, rate, selected

DASHBOARD = Dashboard(
    "headrace-sinks",
    "Headrace: sinks",
    (
        *process(SINKS),
        Panel(
            "Messages not yet delivered",
            "short",
            {"{{service}}": selected("headrace_sink_behind_messages")},
            "Includes messages that the sink leaves out.",
        ),
        Panel(
            "Age of the oldest of these",
            "s",
            {"{{service}}": selected("headrace_sink_behind_seconds")},
        ),
        Panel(
            "Records",
            "ops",
            {"{{service}}": rate("headrace_sink_records_total", "source, service")},
        ),
        Panel(
            "Transactions and commits",
            "ops",
            {
                "transactions {{service}}": rate(
                    "headrace_sink_transactions_total", "source, service"
                ),
                "commits {{service}}": rate("headrace_sink_commits_total", "source, service"),
            },
        ),
        Panel(
            "Duration of a commit (p99)",
            "s",
            {
                "{{service}}": f"histogram_quantile(0.99, {rate('headrace_sink_commit_seconds_bucket', 'source, service, le')})"
            },
        ),
        Panel(
            "Target unavailable",
            "bool_yes_no",
            {"{{service}}": away(SINKS, "target")},
            kind="state-timeline",
        ),
        Panel(
            "Stopped at a refused record",
            "bool_yes_no",
            {"{{service}}": away(SINKS, "refused")},
            "With on_error = stop.",
            kind="state-timeline",
        ),
        Panel(
            "Refused, parked, lost by the stream, recoveries",
            "short",
            {
                "refused": rare("headrace_sink_refused_total"),
                "parked": rare("headrace_sink_parked_total"),
                "gaps": rare("headrace_sink_gaps_total"),
                "recoveries": rare("headrace_sink_recoveries_total"),
            },
        ),
        Panel(
            "Committed up to",
            "short",
            {"{{service}}": selected("headrace_sink_stream_seq")},
            width=24,
        ),
    ),
)
