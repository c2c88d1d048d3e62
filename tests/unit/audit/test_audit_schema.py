"""The audit's settings and its table: names that are refused, partitions, and the two older forms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.audit.settings import AuditSettings, Partitions, load_audit
from headrace.audit.table import AuditTable
from headrace.errors import SettingError
from headrace.settings import PostgresSettings, load

PLAIN = AuditTable("public", "changes", partitioned=False)
MONTHLY = AuditTable("audit", "changes", partitioned=True)


@pytest.mark.parametrize("variable", ["HEADRACE_AUDIT_SCHEMA", "HEADRACE_AUDIT_TABLE"])
def test_only_plain_names_are_taken_since_they_are_written_into_statements(variable: str) -> None:
    for name in ("a", "_a1", "A" * 40):
        load_audit({variable: name})
    for name in ('a"b', "a.b", "1a", "A" * 41, "a b"):
        with pytest.raises(SettingError, match=variable):
            load_audit({variable: name})


def test_an_insert_is_recorded_under_one_of_two_names() -> None:
    assert load_audit({}).insert_as == "CREATE"
    assert load_audit({"HEADRACE_AUDIT_INSERT_AS": "INSERT"}).insert_as == "INSERT"
    with pytest.raises(SettingError, match="HEADRACE_AUDIT_INSERT_AS='insert'"):
        load_audit({"HEADRACE_AUDIT_INSERT_AS": "insert"})


@pytest.mark.parametrize(
    ("variable", "value", "elsewhere"),
    [
        ("DEST_DB_HOST", "h", True),
        ("DEST_DB_PORT", "1", True),
        ("DEST_DB_NAME", "d", True),
        ("DEST_DB_USER", "u", False),
    ],
)
def test_a_trail_is_elsewhere_where_its_server_or_database_is_another(
    variable: str, value: str, *, elsewhere: bool
) -> None:
    audit = load_audit({variable: value})
    assert audit.elsewhere is elsewhere
    assert ("HEADRACE_EXCLUDE" in audit.for_the_suite({})) is not elsewhere
    assert not load_audit({}).elsewhere


def test_the_suite_delivers_contexts_and_not_the_trail_and_keeps_what_it_was_given() -> None:
    own = "public.changes,public.changes_p[0-9][0-9][0-9][0-9]_[0-9][0-9],public.headrace_audit_*"
    assert load_audit({}).for_the_suite({}) == {
        "HEADRACE_MESSAGE_PREFIXES": "_bemi",
        "HEADRACE_EXCLUDE": own,
    }
    given = {"HEADRACE_MESSAGE_PREFIXES": "a, _bemi,", "HEADRACE_EXCLUDE": "b.c"}
    assert load_audit({}).for_the_suite(given) == {
        "HEADRACE_MESSAGE_PREFIXES": "a,_bemi",
        "HEADRACE_EXCLUDE": f"b.c,{own}",
    }


def source() -> PostgresSettings:
    variables = {
        "PG_HOST": "source",
        "PG_PORT": "1",
        "PG_DB": "app",
        "POSTGRES_BRIDGE_USER": "bridge",
        "POSTGRES_BRIDGE_PASSWORD": "secret",
    }
    return load(variables).postgres


def test_what_is_not_said_of_the_destination_is_the_sources() -> None:
    assert load_audit({}).destination(source()) == source()
    variables = {
        "DEST_DB_HOST": "there",
        "DEST_DB_PORT": "2",
        "DEST_DB_NAME": "trail",
        "DEST_DB_USER": "writer",
        "DEST_DB_PASSWORD": "",
    }
    there = replace(load_audit(variables), password="").destination(source())
    assert (there.host, there.port, there.database, there.user, there.password) == (
        "there",
        2,
        "trail",
        "writer",
        "",
    )


def test_a_table_is_as_the_settings_have_it() -> None:
    settings = AuditSettings(schema="s", table="t", wide_indexes=True)
    assert AuditTable.of(settings) == AuditTable("s", "t", partitioned=False, wide_indexes=True)
    assert AuditTable.of(replace(settings, partitions=Partitions.MONTH)).partitioned


@pytest.mark.parametrize(
    ("month", "after"),
    [
        ("2026-01", "2026-02"),
        ("2026-11", "2026-12"),
        ("2026-12", "2027-01"),
        ("0999-12", "1000-01"),
    ],
)
def test_a_months_partition_ends_where_the_next_begins(month: str, after: str) -> None:
    assert MONTHLY.create_partition(month) == (
        f'CREATE TABLE IF NOT EXISTS "audit"."changes_p{month.replace("-", "_")}" PARTITION OF '
        f'"audit"."changes" FOR VALUES FROM (\'{month}-01 00:00:00+00\') TO '
        f"('{after}-01 00:00:00+00')"
    )


def test_only_a_months_own_name_is_a_partition() -> None:
    assert MONTHLY.is_a_month(MONTHLY.partition("2026-11"))
    for name in ("changes_p2026_1", "changes_p2026_111", "xchanges_p2026_11", "changes_payments"):
        assert not MONTHLY.is_a_month(name)


def test_keys_of_a_partitioned_table_have_the_column_that_divides_it() -> None:
    assert "PRIMARY KEY (id)) " not in PLAIN.create()
    assert "PRIMARY KEY (id));" in PLAIN.create()
    assert "(position, ordinal, source);" in PLAIN.create()
    assert "PRIMARY KEY (id, committed_at)) PARTITION BY RANGE (committed_at);" in MONTHLY.create()
    assert "(position, ordinal, source, committed_at);" in MONTHLY.create()


def test_indexes_on_rows_are_made_on_request_only() -> None:
    assert PLAIN.indexes().count("CREATE INDEX") == 3
    wide = replace(PLAIN, wide_indexes=True).indexes()
    assert wide.count("CREATE INDEX") == 5
    assert '"changes_before_index"' in wide
    assert '"changes_after_index"' in wide


def test_an_older_table_gets_the_source_only_where_it_is_known() -> None:
    assert "ADD COLUMN IF NOT EXISTS source text;" in PLAIN.upgrade()
    assert "ADD COLUMN IF NOT EXISTS source text DEFAULT 's';" in PLAIN.upgrade("'s'")


def test_the_audits_other_tables_are_in_its_schema() -> None:
    assert MONTHLY.beside("x") == '"audit".x'
    assert MONTHLY.create_beside().count('IF NOT EXISTS "audit".headrace_audit_') == 3
    assert MONTHLY.place_index == '"audit"."changes_place"'
    assert 'DROP INDEX IF EXISTS "audit"."changes_position_ordinal";' in MONTHLY.unique_place()
    assert 'ALTER TABLE "audit"."changes"' in MONTHLY.adopt()
    assert '"changes_position_table_schema_database_operation_unique"' in MONTHLY.adopt()
