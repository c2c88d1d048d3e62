"""The audit's tables: their DDL, and the upgrade of a table of Bemi or Zemi. Pure.

`changes` has Bemi's columns, and four more: `ordinal`, the change's place in its transaction,
unique together with `position` (the commit's LSN) and `source`; `unchanged`, the columns whose
value PostgreSQL did not send; and `exact`, the text of documents that jsonb does not preserve.
Additional tables are `headrace_audit_state` (how far the trail is, in the same transaction as its
rows), `headrace_audit_tables` (the key of each table, its bytea columns, and since when the trail
has every change of its rows) and `headrace_audit_gaps` (permanent losses).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.audit.settings import AuditSettings, Partitions

STATE = "headrace_audit_state"
TABLES = "headrace_audit_tables"
GAPS = "headrace_audit_gaps"

_COLUMNS = """
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    database text NOT NULL,
    schema text NOT NULL,
    "table" text NOT NULL,
    operation text NOT NULL,
    before jsonb NOT NULL DEFAULT '{}',
    after jsonb NOT NULL DEFAULT '{}',
    context jsonb NOT NULL DEFAULT '{}',
    primary_key text,
    committed_at timestamptz NOT NULL,
    position bigint NOT NULL,
    ordinal bigint,
    transaction_id bigint NOT NULL,
    queued_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    unchanged text[],
    exact jsonb,
    source text
"""
_BESIDE = """
CREATE TABLE IF NOT EXISTS {schema}.headrace_audit_state (
    source text PRIMARY KEY, position bigint NOT NULL, ordinal bigint NOT NULL,
        stream_seq bigint NOT NULL,
    open text, updated_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE IF NOT EXISTS {schema}.headrace_audit_tables (
    source text NOT NULL, schema text NOT NULL, "table" text NOT NULL, key text[] NOT NULL,
        binary_columns text[],
    relation_id bigint, since_position bigint, since_ordinal bigint, files text,
        PRIMARY KEY (source, schema, "table"));
CREATE TABLE IF NOT EXISTS {schema}.headrace_audit_gaps (
    source text NOT NULL, noticed_at timestamptz NOT NULL DEFAULT now(), stream_seq bigint NOT NULL,
    reason text NOT NULL, PRIMARY KEY (source, stream_seq));
"""
# Columns that an older auditor's table lacks, and a unique constraint that a COPY of many rows
# violates.
_ADOPT = """
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS ordinal bigint,
    ADD COLUMN IF NOT EXISTS unchanged text[];
ALTER TABLE {table} ALTER COLUMN primary_key TYPE text, ALTER COLUMN database TYPE text,
    ALTER COLUMN schema TYPE text,
    ALTER COLUMN "table" TYPE text, ALTER COLUMN created_at SET DEFAULT now(),
    ALTER COLUMN transaction_id TYPE bigint, ALTER COLUMN id SET DEFAULT gen_random_uuid();
ALTER TABLE {table}
    DROP CONSTRAINT IF EXISTS changes_position_table_schema_database_operation_unique,
    DROP CONSTRAINT IF EXISTS {unique};
"""
# Columns that a table of an earlier version lacks. `null` in `exact` means that it is unknown
# whether the row's documents lost information. If two sources share the table, their changes may
# have the same position: a unique constraint without the source stopped one of the trails.
_UPGRADE = """
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS exact jsonb DEFAULT 'null',
    ADD COLUMN IF NOT EXISTS source text{default};
ALTER TABLE {table} ALTER COLUMN exact DROP DEFAULT, ALTER COLUMN source DROP DEFAULT;
ALTER TABLE {tables} ADD COLUMN IF NOT EXISTS binary_columns text[],
    ADD COLUMN IF NOT EXISTS relation_id bigint, ADD COLUMN IF NOT EXISTS since_position bigint,
    ADD COLUMN IF NOT EXISTS since_ordinal bigint, ADD COLUMN IF NOT EXISTS files text;
"""
# Separate, because the columns lock readers out, and a large table's index takes long.
_PLACE = """
CREATE UNIQUE INDEX IF NOT EXISTS {place} ON {table} (position, ordinal, source{also});
DROP INDEX IF EXISTS {schema}.{older};
"""
ADOPTABLE = (
    "before",
    "after",
    "context",
    "primary_key",
    "committed_at",
    "position",
    "transaction_id",
    "queued_at",
)


@dataclass(frozen=True, slots=True)
class AuditTable:
    """The audit table's names and statements; both names are plain identifiers (`load_audit` checks
    them).
    """

    schema: str
    name: str
    partitioned: bool
    wide_indexes: bool = False

    @classmethod
    def of(cls, settings: AuditSettings) -> AuditTable:
        return cls(
            settings.schema,
            settings.table,
            settings.partitions is Partitions.MONTH,
            settings.wide_indexes,
        )

    @property
    def quoted(self) -> str:
        return f'"{self.schema}"."{self.name}"'

    def beside(self, name: str) -> str:
        """Another table of the audit, by its full name."""
        return f'"{self.schema}".{name}'

    def create_beside(self) -> str:
        return _BESIDE.replace("{schema}", f'"{self.schema}"')

    def create(self) -> str:
        """Create an audit table. A partitioned table's keys must include the column it is
        partitioned by.
        """
        # PostgreSQL has no unique index across partitions.
        also = ", committed_at" if self.partitioned else ""
        if self.partitioned:
            tail = " PARTITION BY RANGE (committed_at)"
        else:
            tail = ""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.quoted} ({_COLUMNS}, PRIMARY KEY (id{also})){tail};"
            # CREATE … IF NOT EXISTS leaves an existing table as it is: it gets what it lacks.
            + self.upgrade()
            + self.unique_place()
            + self.indexes()
        )

    def upgrade(self, source: str | None = None) -> str:
        """Statements that upgrade a table of an earlier version, and don't change a current one.

        `source`: the only one that the table's rows can be of, as an SQL literal.
        """
        default = "" if source is None else f" DEFAULT {source}"
        return _UPGRADE.format(table=self.quoted, tables=self.beside(TABLES), default=default)

    @property
    def place_index(self) -> str:
        """The full name of the index that makes a change's position unique."""
        return f'"{self.schema}"."{self.name}_place"'

    def unique_place(self) -> str:
        """Statements that create that index, replacing an earlier version's."""
        return _PLACE.format(
            table=self.quoted,
            schema=f'"{self.schema}"',
            place=f'"{self.name}_place"',
            older=f'"{self.name}_position_ordinal"',
            also=", committed_at" if self.partitioned else "",
        )

    def adopt(self) -> str:
        """Statements that convert an older auditor's table; its rows stay."""
        old = f'"{self.name}_position_table_schema_database_operation_unique"'
        return (
            _ADOPT.replace("{table}", self.quoted).replace("{unique}", old)
            + self.upgrade()
            + self.indexes()
        )

    def indexes(self) -> str:
        """By table and key, by time, by context; on the rows themselves only on request, because
        these cost most.
        """
        wanted = {
            "table_key": '("table", primary_key)',
            "time": "(committed_at)",
            "context": "USING gin (context jsonb_path_ops)",
        }
        if self.wide_indexes:
            wanted |= {
                "before": "USING gin (before jsonb_path_ops)",
                "after": "USING gin (after jsonb_path_ops)",
            }
        return "".join(
            f'CREATE INDEX IF NOT EXISTS "{self.name}_{name}_index" ON {self.quoted} {what};'
            for name, what in wanted.items()
        )

    def partition(self, month: str) -> str:
        """The name of a month's partition, such as `2026-11`'s."""
        return f"{self.name}_p{month.replace('-', '_')}"

    def is_a_month(self, name: str) -> bool:
        """Whether `create_partition` creates a partition of this name."""
        # Others may have partitions with other names, which are never dropped.
        return re.fullmatch(re.escape(self.name) + r"_p\d{4}_\d{2}", name) is not None

    def create_partition(self, month: str) -> str:
        year, number = (int(part) for part in month.split("-"))
        # 12 // 12 is 1: December is followed by the next year.
        after = f"{year + number // 12:04d}-{number % 12 + 1:02d}"
        return (
            f'CREATE TABLE IF NOT EXISTS "{self.schema}"."{self.partition(month)}" PARTITION '
            f"OF {self.quoted} "
            f"FOR VALUES FROM ('{month}-01 00:00:00+00') TO ('{after}-01 00:00:00+00')"
        )
