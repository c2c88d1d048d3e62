"""Settings of the audit trail: where it is written, what it leaves out, how long it is kept.

`DEST_DB_*`, `HEALTH_PORT` and `METRICS_PORT` are Bemi's and Zemi's names. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.errors import SettingError
from headrace.settings import PostgresSettings, load_group, setting

_MONTH = "[0-9][0-9][0-9][0-9]_[0-9][0-9]"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")


class Partitions(StrEnum):
    NONE = "none"
    MONTH = "month"


class SslMode(StrEnum):
    """libpq's values of `sslmode`."""

    DISABLE = "disable"
    PREFER = "prefer"
    REQUIRE = "require"
    VERIFY_CA = "verify-ca"
    VERIFY_FULL = "verify-full"


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The audit-writer: what it records, and where. See [the audit trail](audit.md)."""

    enabled: bool = setting(
        "HEADRACE_AUDIT",
        False,
        "Whether `headrace up` also runs the audit-writer.",
    )
    host: str | None = setting(
        "DEST_DB_HOST",
        None,
        "Host of the database that contains the audit table. When this, the port and the database "
        "name are unset, the trail is written to the source database.",
    )
    port: int | None = setting(
        "DEST_DB_PORT", None, "Port of that database. Defaults to the source's.", least=1
    )
    database: str | None = setting(
        "DEST_DB_NAME", None, "Name of that database. Defaults to the source's."
    )
    user: str | None = setting(
        "DEST_DB_USER",
        None,
        "Role to write with. It must be allowed to create and fill the audit table. Defaults to "
        "the source's.",
    )
    password: str | None = setting(
        "DEST_DB_PASSWORD", None, "Password of that role. Defaults to the source's.", secret=True
    )
    ssl_mode: SslMode | None = setting(
        "DEST_DB_SSL_MODE",
        None,
        "libpq's `sslmode` for that connection. Falls back to `PGSSLMODE`.",
    )
    ssl_root_cert: str | None = setting(
        "DEST_DB_SSL_ROOT_CERT",
        None,
        "Path of the certificate authority (PEM) to trust for that connection.",
    )
    schema: str = setting(
        "HEADRACE_AUDIT_SCHEMA", "public", "Schema that contains the audit table and its state."
    )
    table: str = setting("HEADRACE_AUDIT_TABLE", "changes", "Name of the audit table.")
    tables: tuple[str, ...] = setting(
        "HEADRACE_AUDIT_TABLES",
        (),
        "Tables to audit, as `table`, `schema.table` or `schema.*`. Unset audits every table that "
        "the suite delivers.",
    )
    redact: tuple[str, ...] = setting(
        "HEADRACE_AUDIT_REDACT",
        (),
        "Columns whose values are replaced with `[redacted]`, as `table.column` or "
        "`schema.table.column`. Applies to keys and old rows too. Changes of these columns "
        "can't be reverted.",
    )
    insert_as: str = setting(
        "HEADRACE_AUDIT_INSERT_AS",
        "CREATE",
        "Operation name recorded for inserts: `CREATE`, compatible with Bemi, or `INSERT`.",
    )
    partitions: Partitions = setting(
        "HEADRACE_AUDIT_PARTITIONS",
        Partitions.NONE,
        "Partitioning of a new audit table. `month` creates a partition for each month as needed, "
        "which makes removing old rows cheap. An existing table keeps its form.",
    )
    keep_days: int | None = setting(
        "HEADRACE_AUDIT_KEEP_DAYS",
        None,
        "Days after which rows are removed; with partitions, whole months are dropped. Unset keeps "
        "everything.",
        least=1,
    )
    wide_indexes: bool = setting(
        "HEADRACE_AUDIT_WIDE_INDEXES",
        False,
        "Create GIN indexes on `before` and `after`, for searches by any column's value. They cost "
        "more than all the rest of writing a row.",
    )
    batch_rows_max: int = setting(
        "HEADRACE_AUDIT_BATCH_ROWS_MAX",
        20_000,
        "Maximum number of rows that are read ahead while a commit is under way. A larger value "
        "raises throughput and memory.",
        least=1,
    )
    batch_bytes_max: int = setting(
        "HEADRACE_AUDIT_BATCH_BYTES_MAX",
        8 << 20,
        "The same limit in bytes; whichever is reached first applies.",
        least=1024,
    )
    whole_rows_max: int = setting(
        "HEADRACE_AUDIT_WHOLE_ROWS_MAX",
        50_000,
        "Number of rows up to which a transaction is committed to the trail as a whole. A larger "
        "one is committed in parts, which bounds memory.",
        least=1,
    )
    whole_bytes_max: int = setting(
        "HEADRACE_AUDIT_WHOLE_BYTES_MAX",
        32 << 20,
        "The same limit in bytes; whichever is reached first applies.",
        least=1024,
    )
    commit_timeout_s: float = setting(
        "HEADRACE_AUDIT_COMMIT_TIMEOUT_S",
        120.0,
        "Seconds without an answer from the destination after which the audit-writer reconnects. "
        "Raise it for a slow destination.",
        least=1,
    )
    token: str | None = setting(
        "HEADRACE_AUDIT_TOKEN",
        None,
        "Bearer token for the audit page. Required when the page is reached from another host; "
        "without it the page answers on loopback only.",
        secret=True,
    )
    page_port: int | None = setting(
        "HEADRACE_AUDIT_PORT",
        None,
        "Port of the audit page when started by `headrace audit up`. If unset, 9096, or a free "
        "port if that is taken.",
        least=1,
    )
    health_port: int | None = setting(
        "HEALTH_PORT",
        None,
        "Additional port that answers 200 on any path, compatible with Zemi's health check.",
        least=0,
    )
    health_ready: bool = setting(
        "HEADRACE_AUDIT_HEALTH_READY",
        False,
        "Make `HEALTH_PORT` answer 503, with the reasons, while the audit trail makes no progress.",
    )
    metrics_port: int | None = setting(
        "METRICS_PORT", None, "Additional port that serves `/metrics`.", least=0
    )

    @property
    def elsewhere(self) -> bool:
        """Whether the trail is written outside the source database."""
        # Another role may write to the source database too, so it does not count.
        return not (self.host is None and self.port is None and self.database is None)

    def for_the_suite(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Variables for the other services: deliver contexts, but not the trail itself."""
        added = {"HEADRACE_MESSAGE_PREFIXES": ["_bemi"]}
        if not self.elsewhere:
            # Partitions by their exact form: `changes_payments` may be a table of the user's.
            names = (self.table, f"{self.table}_p{_MONTH}", "headrace_audit_*")
            added["HEADRACE_EXCLUDE"] = [f"{self.schema}.{name}" for name in names]
        variables = {}
        for variable, values in added.items():
            # The user's own values stay.
            there = [one.strip() for one in environ.get(variable, "").split(",") if one.strip()]
            variables[variable] = ",".join([*there, *(one for one in values if one not in there)])
        return variables

    def destination(self, source: PostgresSettings) -> PostgresSettings:
        """Where to connect; unset settings are the source's."""
        return replace(
            source,
            host=self.host or source.host,
            port=self.port or source.port,
            database=self.database or source.database,
            user=self.user or source.user,
            # An empty password is one as well.
            password=source.password if self.password is None else self.password,
        )


def load_audit(environ: Mapping[str, str]) -> AuditSettings:
    """The settings, checked before any I/O."""
    settings = load_group(AuditSettings, environ, {})
    for env, name in (
        ("HEADRACE_AUDIT_SCHEMA", settings.schema),
        ("HEADRACE_AUDIT_TABLE", settings.table),
    ):
        # Both are written into statements as they are.
        if not _NAME.fullmatch(name):
            raise SettingError(
                f"{env}={name!r} is not a valid name",
                remedy="Use up to 40 letters, digits and underscores.",
            )
    if settings.insert_as not in {"CREATE", "INSERT"}:
        raise SettingError(
            f"HEADRACE_AUDIT_INSERT_AS={settings.insert_as!r} is not valid",
            remedy="Set it to CREATE or INSERT.",
        )
    return settings
