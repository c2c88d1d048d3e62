"""Settings of the connections to PostgreSQL and NATS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.settings.declaration import setting


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """The source database. libpq's variables (`PGHOST`, `PGSSLMODE`, `PGSERVICE`, …) apply wherever
    these are unset.
    """

    host: str | None = setting(
        "PG_HOST",
        None,
        "Host name, IP address or socket directory of PostgreSQL. Falls back to `PGHOST`, then to "
        "`localhost`.",
    )
    port: int | None = setting(
        "PG_PORT", None, "Port of PostgreSQL. Falls back to `PGPORT`, then to 5432.", least=1
    )
    database: str | None = setting(
        "PG_DB",
        None,
        "Database to read changes from. A replication slot belongs to one database, so a suite "
        "reads one. Falls back to `PGDATABASE`.",
    )
    user: str | None = setting(
        "POSTGRES_BRIDGE_USER",
        None,
        "Role to connect as. It needs the REPLICATION attribute, and SELECT on tables that are "
        "copied in snapshots. Falls back to `PGUSER`.",
    )
    password: str | None = setting(
        "POSTGRES_BRIDGE_PASSWORD",
        None,
        "Password of that role. Falls back to `PGPASSWORD` and `PGPASSFILE`.",
        secret=True,
    )
    connect_timeout_s: int = setting(
        "HEADRACE_PG_CONNECT_TIMEOUT_S",
        10,
        "Seconds to wait for a connection to PostgreSQL before the attempt fails and is retried. "
        "Raise it for a distant or heavily loaded server.",
        least=1,
    )


@dataclass(frozen=True, slots=True)
class NatsSettings:
    """The NATS server or cluster, and how to authenticate to it."""

    url: str | None = setting(
        "NATS_URL",
        None,
        "NATS URLs, separated by commas, such as `nats://a:4222,nats://b:4222`. List every server "
        "of a cluster so that a client can start while one is down. Overrides `NATS_HOST`.",
    )
    host: str = setting(
        "NATS_HOST", "localhost", "NATS host, or `host:port`. Used when `NATS_URL` is unset."
    )
    user: str | None = setting("NATS_BRIDGE_USER", None, "NATS user name.")
    password: str | None = setting(
        "NATS_BRIDGE_PASSWORD", None, "Password of the NATS user.", secret=True
    )
    token: str | None = setting(
        "NATS_TOKEN",
        None,
        "NATS authentication token, used instead of a user name and password.",
        secret=True,
    )
    credentials: Path | None = setting(
        "NATS_CREDS", None, "Path of a NATS credentials file (user JWT and nkey seed)."
    )
    nkey_seed: Path | None = setting(
        "NATS_NKEY_SEED", None, "Path of a file that contains an nkey seed."
    )
    tls_ca: Path | None = setting(
        "NATS_TLS_CA",
        None,
        "Path of the certificate authority (PEM) that signed the NATS server's certificate. "
        "Setting it requires TLS.",
    )
    tls_cert: Path | None = setting(
        "NATS_TLS_CERT",
        None,
        "Path of the client certificate (PEM) for mutual TLS. Setting it requires TLS.",
    )
    tls_key: Path | None = setting(
        "NATS_TLS_KEY", None, "Path of the client certificate's private key (PEM)."
    )
    inbox_prefix: str | None = setting(
        "NATS_INBOX_PREFIX",
        None,
        "Subject prefix for replies, instead of `_INBOX`. Set it when the NATS account gives each "
        "user a private inbox.",
    )
    reconnect_wait_s: float = setting(
        "HEADRACE_NATS_RECONNECT_WAIT_S",
        2.0,
        "Seconds between attempts to reconnect to NATS. A smaller value resumes sooner after a "
        "restart of NATS; a larger one spares a busy server. Attempts never end.",
        least=0.01,
    )
    ping_interval_s: float = setting(
        "HEADRACE_NATS_PING_INTERVAL_S",
        5.0,
        "Seconds between pings. A connection is considered dead after three unanswered pings, so "
        "a half-open connection is noticed after about three intervals.",
        least=0.1,
    )
    flush_timeout_s: float = setting(
        "HEADRACE_NATS_FLUSH_TIMEOUT_S",
        10.0,
        "Seconds that telemetry waits for NATS to accept the stop command of `POST /shutdown`.",
        least=0.1,
    )
