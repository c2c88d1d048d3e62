"""Settings of the SQL server: the lake over PostgreSQL's wire protocol."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.settings.declaration import MIB, setting


@dataclass(frozen=True, slots=True)
class SqlSettings:
    """The lake's tables for clients of PostgreSQL."""

    enabled: bool = setting(
        "HEADRACE_SQL",
        False,  # a setting's default
        "Whether `headrace up` also runs a SQL server, if there is a lake.",
    )
    host: str = setting(
        "HEADRACE_SQL_HOST",
        "127.0.0.1",
        "Address that the SQL server listens on. Clients log in with their own password on any "
        "address. Use TLS on all addresses but those of this machine.",
    )
    port: int = setting(
        "HEADRACE_SQL_PORT",
        5440,
        "Port that the SQL server listens on.",
        least=0,
    )
    folder: str = setting(
        "HEADRACE_SQL_FOLDER",
        ".headrace/sql",
        "Local folder of the SQL server. It contains the private PostgreSQL, which has users, "
        "grants and the tables' definitions but no rows, and the copies of the tables. Keep the "
        "folder: without it, users and grants are lost. The copies are filled again.",
    )
    postgres: str | None = setting(
        "HEADRACE_SQL_POSTGRES",
        None,
        "URL of a PostgreSQL 16 or newer to use instead of the one in HEADRACE_SQL_FOLDER, as "
        "`postgresql://superuser:password@host:port/database`. The database must belong to this "
        "SQL server only, and must have the encoding UTF8 and the collation C.",
        secret=True,
    )
    database: str = setting(
        "HEADRACE_SQL_DATABASE",
        "lake",
        "Name of the database that clients connect to.",
    )
    tls_cert: str | None = setting(
        "HEADRACE_SQL_TLS_CERT",
        None,
        "File with the server's certificate chain (PEM). If unset, connections are not encrypted.",
    )
    tls_key: str | None = setting(
        "HEADRACE_SQL_TLS_KEY",
        None,
        "File with the private key of `HEADRACE_SQL_TLS_CERT` (PEM).",
    )
    tls_required: bool = setting(
        "HEADRACE_SQL_TLS_REQUIRED",
        False,  # a setting's default
        "Whether connections without TLS are refused.",
    )
    connections_max: int = setting(
        "HEADRACE_SQL_CONNECTIONS_MAX",
        100,
        "Maximum number of clients that are connected at the same time. Each has a process in the "
        "private PostgreSQL.",
        least=1,
    )
    queries_max: int = setting(
        "HEADRACE_SQL_QUERIES_MAX",
        4,
        "Maximum number of statements that read the lake at the same time; others wait. A larger "
        "value shares the memory and the processors among more statements.",
        least=1,
    )
    idle_timeout_s: float = setting(
        "HEADRACE_SQL_IDLE_TIMEOUT_S",
        0.0,
        "Seconds without a statement after which a connection is closed; 0 means never.",
        least=0,
    )
    memory_mb: int = setting(
        "HEADRACE_SQL_MEMORY_MB",
        2048,
        "Memory for the copies of the tables and for queries, in MiB. Data that doesn't fit is "
        "written to `HEADRACE_SQL_FOLDER`. The process needs a few hundred MiB more.",
        least=128,
    )
    spill_mb: int = setting(
        "HEADRACE_SQL_SPILL_MB",
        10_240,
        "Maximum space in `HEADRACE_SQL_FOLDER` for data that doesn't fit into memory, in MiB.",
        least=0,
    )
    threads: int = setting(
        "HEADRACE_SQL_THREADS",
        0,
        "Threads of one query; 0 means as many as there are processors.",
        least=0,
    )
    pin_s: float = setting(
        "HEADRACE_SQL_PIN_S",
        3600.0,
        "Seconds for which a transaction may keep its cut. The copies keep the rows that it sees "
        "for this time. After that, its next statement fails.",
        least=1,
    )
    poll_interval_s: float = setting(
        "HEADRACE_SQL_POLL_INTERVAL_S",
        0.25,
        "Seconds between two checks for a later cut. Each check is a query of the lake's catalog.",
        least=0.01,
    )
    send_timeout_s: float = setting(
        "HEADRACE_SQL_SEND_TIMEOUT_S",
        300.0,
        "Seconds after which a client that reads no bytes of its result is disconnected.",
        least=1,
    )
    message_bytes_max: int = setting(
        "HEADRACE_SQL_MESSAGE_BYTES_MAX",
        16 * MIB,
        "Maximum size of a client's message in bytes: a statement's text, or its parameters.",
        least=64 * 1024,
    )
    result_rows_max: int = setting(
        "HEADRACE_SQL_RESULT_ROWS_MAX",
        0,
        "Maximum number of rows that one statement may return from the lake; 0 means any number. A "
        "statement that returns more fails.",
        least=0,
    )
    exact_rows_max: int = setting(
        "HEADRACE_SQL_EXACT_ROWS_MAX",
        1_000_000,
        "Maximum number of rows in the tables of a statement that runs in the private PostgreSQL, "
        "because something in it is not proven equal in DuckDB. A statement on larger tables is "
        "refused; 0 refuses all such statements.",
        least=0,
    )
    schema_wait_s: float = setting(
        "HEADRACE_SQL_SCHEMA_WAIT_S",
        30.0,
        "Seconds for which a change of a table's columns waits for transactions that use the "
        "table. After that, their connections are closed. Later cuts wait meanwhile.",
        least=0,
    )
