-- Headrace's roles, each with the least rights it needs. They are not superusers and can't write to your tables.
--
--   psql -v reader_password=… -v catalog_password=… -v snapshot_password=… -v audit_password=… \
--       -d <database> -f roles.sql
--
-- Run this as a superuser in the source database; it is safe to repeat. Passwords are variables, so that no file contains
-- them. With other authentication methods, remove them afterwards (ALTER ROLE … PASSWORD NULL). The role for backups is
-- created only with -v backup_password=….
--
-- A role with REPLICATION can read the whole cluster: PostgreSQL allows BASE_BACKUP on every replication connection, also
-- on those to a database, so that leaving out `host replication …` in pg_hba.conf doesn't prevent it. Keep the passwords of
-- these roles as you keep a superuser's, and let pg_hba.conf accept them only from where the services run.
\set ON_ERROR_STOP on
SELECT format('CREATE ROLE %I', name)
FROM unnest(ARRAY['headrace_reader', 'headrace_catalog', 'headrace_snapshot', 'headrace_audit']) name
WHERE NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = name) \gexec

-- wal-reader: the slot, and no rights on tables. It doesn't see data that the publication excludes.
ALTER ROLE headrace_reader LOGIN REPLICATION NOINHERIT CONNECTION LIMIT 10 PASSWORD :'reader_password';
-- publisher, schema-publisher, archiver, audit-writer, telemetry, console: the catalog and the slot's state, which every role
-- may read.
ALTER ROLE headrace_catalog LOGIN NOINHERIT CONNECTION LIMIT 20 PASSWORD :'catalog_password';
-- snapshot-responder and its tasks, lake-writer: a temporary slot for the exact LSN, and SELECT on tables that may be copied.
ALTER ROLE headrace_snapshot LOGIN REPLICATION CONNECTION LIMIT 50 PASSWORD :'snapshot_password';
ALTER ROLE headrace_snapshot SET default_transaction_read_only = on;
-- audit-writer: the trail, in a separate schema that no other role can read unless you grant it.
ALTER ROLE headrace_audit LOGIN NOINHERIT CONNECTION LIMIT 20 PASSWORD :'audit_password';
CREATE SCHEMA IF NOT EXISTS headrace_audit AUTHORIZATION headrace_audit;
-- Sinks have no role: their copies of tables are snapshots, which snapshot-responder takes as headrace_snapshot. Nor has
-- sql-server: it reads the lake.

\if :{?backup_password}
-- wal-archiver and `headrace backup`: the physical slot, the log as bytes, and base backups. That is a copy of every file of
-- the cluster: anyone who has this password can read all rows of all databases, although the role has no right on any table.
-- Of the catalog it reads the tables' names, to find dropped ones. `headrace restore --table` writes a table, and connects
-- as a role of yours.
SELECT 'CREATE ROLE headrace_backup'
WHERE NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'headrace_backup') \gexec
ALTER ROLE headrace_backup LOGIN REPLICATION NOINHERIT CONNECTION LIMIT 10 PASSWORD :'backup_password';
ALTER ROLE headrace_backup SET default_transaction_read_only = on;
SELECT format('GRANT CONNECT ON DATABASE %I TO headrace_backup', current_database()) \gexec
\endif

SELECT format('GRANT CONNECT ON DATABASE %I TO headrace_reader, headrace_catalog, headrace_snapshot,'
    ' headrace_audit', current_database())
\gexec

-- The tables that consumers may request snapshots of, and that a lake may contain. For other schemas, repeat these lines with their name. For tables
-- that another role creates later, use ALTER DEFAULT PRIVILEGES FOR ROLE <that role>.
GRANT USAGE ON SCHEMA public TO headrace_snapshot;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO headrace_snapshot;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO headrace_snapshot;
