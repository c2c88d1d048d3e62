"""The dashboard of the sql-server."""

from __future__ import annotations

from panels.panel import Dashboard, Panel, process, quantile, rare, rate, selected

DASHBOARD = Dashboard(
    "headrace-sql",
    "Headrace: SQL (sql-server)",
    (
        *process("sql-server"),
        Panel(
            "Clients",
            "short",
            {"{{source}}": f"{selected('headrace_sql_connections')} or on () vector(0)"},
        ),
        Panel(
            "Statements that read the lake",
            "ops",
            {"{{source}}": f"{rate('headrace_sql_statements_total')} or on () vector(0)"},
        ),
        Panel(
            "Duration of a statement",
            "s",
            {
                f"p{share:g}": f"{quantile(share / 100, 'headrace_sql_statement_seconds')} or on () vector(0)"
                for share in (50, 99)
            },
        ),
        Panel(
            "Rows sent",
            "ops",
            {"{{source}}": f"{rate('headrace_sql_rows_total')} or on () vector(0)"},
        ),
        Panel(
            "Errors sent to clients",
            "ops",
            {
                "{{sqlstate}}": f"{rate('headrace_sql_errors_total', by='sqlstate')} or on () vector(0)"
            },
            "0A000: a statement that the SQL server does not support.",
        ),
        Panel(
            "Age of the cut that clients see",
            "s",
            {"{{source}}": selected("headrace_sql_cut_age_seconds")},
            "Grows while the source writes nothing, since there is no later cut then.",
        ),
        Panel(
            "Log between the lake's last cut and the one that clients see",
            "bytes",
            {
                "{{source}}": f"max by (source) ({selected('headrace_lake_lsn')}) - max by (source) ({selected('headrace_sql_lsn')})"
            },
        ),
        Panel(
            "Time to show a cut",
            "s",
            {
                f"p{share:g}": f"{quantile(share / 100, 'headrace_sql_cut_seconds')} or on () vector(0)"
                for share in (50, 99)
            },
        ),
        Panel(
            "Logins and ended connections",
            "short",
            {
                "logins": rare("headrace_sql_logins_total"),
                "ended": rare("headrace_sql_ended_connections_total"),
                "ended by a change of columns": rare("headrace_sql_ended_sessions_total"),
                "ended by an unexpected error": rare("headrace_sql_session_failures_total"),
            },
        ),
        Panel(
            "Cuts that could not be taken",
            "short",
            {"{{source}}": rare("headrace_sql_recoveries_total")},
        ),
    ),
)
