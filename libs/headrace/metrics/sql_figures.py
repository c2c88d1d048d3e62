"""The metrics of the SQL server. Pure."""

from __future__ import annotations

from headrace.metrics.figure import SECONDS, SQL, Figure

SQL_FIGURES = (
    Figure("sql_connections", "gauge", "Clients connected to the SQL server", SQL),
    Figure("sql_logins", "counter", "Logins that succeeded", SQL),
    Figure("sql_ended_connections", "counter", "Connections that the SQL server ended", SQL),
    Figure("sql_statements", "counter", "Statements that read the lake", SQL),
    Figure(
        "sql_exact_statements",
        "counter",
        "Statements that the private PostgreSQL has run itself, as DuckDB is not proven equal",
        SQL,
    ),
    Figure("sql_rows", "counter", "Rows of the lake sent to clients", SQL),
    Figure(
        "sql_statement_seconds",
        "histogram",
        "Time of an execution that reads the lake, with sending its rows",
        SQL,
        bounds=SECONDS,
    ),
    Figure("sql_errors", "counter", "Errors sent to clients", SQL, labels=("sqlstate",)),
    Figure("sql_cuts", "counter", "Cuts shown to clients", SQL),
    Figure("sql_lsn", "gauge", "LSN of the cut that new transactions see", SQL),
    Figure("sql_cut_age_seconds", "gauge", "Age of the cut that is shown", SQL),
    Figure(
        "sql_cut_seconds",
        "histogram",
        "Time to define a cut and to feed it to the copies",
        SQL,
        bounds=SECONDS,
    ),
    Figure(
        "sql_ended_sessions", "counter", "Sessions ended because a table's columns changed", SQL
    ),
    Figure("sql_session_failures", "counter", "Sessions ended by an unexpected error", SQL),
    Figure("sql_recoveries", "counter", "Attempts to take a cut that failed", SQL),
)
