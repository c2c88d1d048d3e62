"""The audit's settings: where the trail is written, what is left out of it, how long it is kept.

Owns their names, defaults and explanations (docs/audit.md has the list). `DEST_DB_*`, `HEALTH_PORT`
and `METRICS_PORT` are Bemi's and Zemi's names. Pure.
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
    """libpq's; unset leaves it to PGSSLMODE."""

    DISABLE = "disable"
    PREFER = "prefer"
    REQUIRE = "require"
    VERIFY_CA = "verify-ca"
    VERIFY_FULL = "verify-full"


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """What the audit-writer does, and where (docs/audit.md)."""

    enabled: bool = setting("HEADRACE_AUDIT", False, "`headrace up` runs the audit-writer too")
    host: str | None = setting(
        "DEST_DB_HOST", None, "the destination's host; unset: the source's server"
    )
    port: int | None = setting("DEST_DB_PORT", None, "its port", least=1)
    database: str | None = setting("DEST_DB_NAME", None, "its database")
    user: str | None = setting("DEST_DB_USER", None, "a role that may create and fill the table")
    password: str | None = setting("DEST_DB_PASSWORD", None, "its password", secret=True)
    ssl_mode: SslMode | None = setting(
        "DEST_DB_SSL_MODE", None, "disable, prefer, require, verify-ca, verify-full"
    )
    ssl_root_cert: str | None = setting(
        "DEST_DB_SSL_ROOT_CERT", None, "file of the authority to trust"
    )
    schema: str = setting("HEADRACE_AUDIT_SCHEMA", "public", "the schema of the audit's tables")
    table: str = setting("HEADRACE_AUDIT_TABLE", "changes", "the audit table's name")
    tables: tuple[str, ...] = setting(
        "HEADRACE_AUDIT_TABLES", (), "tables to audit: table, schema.table, schema.*"
    )
    redact: tuple[str, ...] = setting(
        "HEADRACE_AUDIT_REDACT", (), "columns never written: table.column"
    )
    insert_as: str = setting(
        "HEADRACE_AUDIT_INSERT_AS", "CREATE", "an insert's operation: CREATE, as Bemi's, or INSERT"
    )
    partitions: Partitions = setting(
        "HEADRACE_AUDIT_PARTITIONS", Partitions.NONE, "month: a partition for each"
    )
    keep_days: int | None = setting(
        "HEADRACE_AUDIT_KEEP_DAYS", None, "older rows are removed", least=1
    )
    wide_indexes: bool = setting(
        "HEADRACE_AUDIT_WIDE_INDEXES", False, "GIN indexes on before and after too"
    )
    batch_rows_max: int = setting(
        "HEADRACE_AUDIT_BATCH_ROWS_MAX", 20_000, "rows read ahead of a commit", least=1
    )
    batch_bytes_max: int = setting(
        "HEADRACE_AUDIT_BATCH_BYTES_MAX", 8 << 20, "bytes of them", least=1024
    )
    whole_rows_max: int = setting(
        "HEADRACE_AUDIT_WHOLE_ROWS_MAX", 50_000, "larger transactions in parts", least=1
    )
    whole_bytes_max: int = setting(
        "HEADRACE_AUDIT_WHOLE_BYTES_MAX", 32 << 20, "bytes of such a one", least=1024
    )
    commit_timeout_s: float = setting(
        "HEADRACE_AUDIT_COMMIT_TIMEOUT_S", 120.0, "then it connects anew", least=1
    )
    token: str | None = setting(
        "HEADRACE_AUDIT_TOKEN", None, "for the page, beyond loopback", secret=True
    )
    page_port: int | None = setting(
        "HEADRACE_AUDIT_PORT",
        None,
        "the page's port with `headrace audit up`; unset: 9096, or any if that is taken",
        least=1,
    )
    health_port: int | None = setting(
        "HEALTH_PORT", None, "answers 200 on any path, as Zemi's", least=0
    )
    health_ready: bool = setting(
        "HEADRACE_AUDIT_HEALTH_READY",
        False,
        "HEALTH_PORT answers 503 with the reasons while the trail stands still",
    )
    metrics_port: int | None = setting("METRICS_PORT", None, "serves /metrics there too", least=0)

    @property
    def elsewhere(self) -> bool:
        """Whether the trail is written to another place than the source database."""
        return not (self.host is None and self.port is None and self.database is None)

    def for_the_suite(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What the other services must be told: to deliver context, and not to deliver the trail
        itself.
        """
        added = {"HEADRACE_MESSAGE_PREFIXES": ["_bemi"]}
        if not self.elsewhere:
            # The months by their form: `changes_payments` may be a table of the user's.
            names = (self.table, f"{self.table}_p{_MONTH}", "headrace_audit_*")
            added["HEADRACE_EXCLUDE"] = [f"{self.schema}.{name}" for name in names]
        told = {}
        for variable, values in added.items():
            there = [one.strip() for one in environ.get(variable, "").split(",") if one.strip()]
            told[variable] = ",".join([*there, *(one for one in values if one not in there)])
        return told

    def destination(self, source: PostgresSettings) -> PostgresSettings:
        """Where to connect: what is unset is as the source's."""
        return replace(
            source,
            host=self.host or source.host,
            port=self.port or source.port,
            database=self.database or source.database,
            user=self.user or source.user,
            password=source.password if self.password is None else self.password,
        )


def load_audit(environ: Mapping[str, str]) -> AuditSettings:
    """The settings, checked before any I/O."""
    settings = load_group(AuditSettings, environ, {})
    for env, name in (
        ("HEADRACE_AUDIT_SCHEMA", settings.schema),
        ("HEADRACE_AUDIT_TABLE", settings.table),
    ):
        if not _NAME.fullmatch(name):
            raise SettingError(
                f"{env}={name!r} can't be used",
                remedy="Use up to 40 letters, digits and underscores.",
            )
    if settings.insert_as not in {"CREATE", "INSERT"}:
        raise SettingError(
            f"HEADRACE_AUDIT_INSERT_AS={settings.insert_as!r} can't be used",
            remedy="Set it to CREATE or INSERT.",
        )
    return settings
