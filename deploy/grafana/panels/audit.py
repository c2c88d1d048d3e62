"""The dashboard of the audit-writer."""

from __future__ import annotations

from panels.panel import Dashboard, Panel, away, process, rare, rate, selected

DASHBOARD = Dashboard(
    "headrace-audit",
    "Headrace: audit trail (audit-writer)",
    (
        *process("audit-writer"),
        Panel(
            "Messages not yet in the trail",
            "short",
            {"{{source}}": selected("headrace_audit_behind_messages")},
            "Includes messages that produce no row.",
        ),
        Panel(
            "Age of the oldest of these",
            "s",
            {"{{source}}": selected("headrace_audit_behind_seconds")},
        ),
        Panel(
            "Changes read",
            "ops",
            {"{{operation}}": rate("headrace_audit_rows_total", by="operation")},
        ),
        Panel(
            "Transactions and commits",
            "ops",
            {
                "transactions {{source}}": rate("headrace_audit_transactions_total"),
                "commits {{source}}": rate("headrace_audit_commits_total"),
            },
        ),
        Panel(
            "Commit to row, latest change",
            "s",
            {"{{source}}": selected("headrace_audit_lag_seconds")},
        ),
        Panel(
            "Destination unavailable",
            "bool_yes_no",
            {"{{source}}": away("audit-writer", "destination")},
            kind="state-timeline",
        ),
        Panel(
            "Gaps, recoveries, expired rows",
            "short",
            {
                "gaps": rare("headrace_audit_gaps_total"),
                "recoveries": rare("headrace_audit_recoveries_total"),
                "removed": rare("headrace_audit_expired_total"),
            },
        ),
        Panel("Trail written up to", "short", {"{{source}}": selected("headrace_audit_lsn")}),
        Panel(
            "Reporting services",
            "bool_yes_no",
            {"{{source}}": selected("headrace_up", service="audit-writer")},
            "No: it has stopped. Its log contains the error, if there was one.",
            kind="state-timeline",
            width=24,
        ),
    ),
)
