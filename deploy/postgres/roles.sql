-- The roles of Headrace, each with the least it needs: none is a superuser, none can write a row of yours.
--
--   psql -v reader_password=… -v catalog_password=… -v snapshot_password=… -v audit_password=… -d <database> -f roles.sql
--
-- As a superuser, in the database whose changes are read; safe to repeat. Passwords come as variables, so that none is
-- in a file; with other ways of authentication drop them afterwards (ALTER ROLE … PASSWORD NULL).
--
-- A role with REPLICATION may also copy the whole cluster (pg_basebackup). Logical replication needs no line
-- `host replication …` in pg_hba.conf: keep these roles out of it, and they can't.
\set ON_ERROR_STOP on
SELECT format('CREATE ROLE %I', name)
FROM unnest(ARRAY['headrace_reader', 'headrace_catalog', 'headrace_snapshot', 'headrace_audit']) name
WHERE NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = name) \gexec

-- wal-reader: the slot, and no right on any table. What a publication leaves out, it does not see.
ALTER ROLE headrace_reader LOGIN REPLICATION NOINHERIT CONNECTION LIMIT 10 PASSWORD :'reader_password';
-- publisher, schema-publisher, archiver, audit-writer, telemetry: the catalog and the slot's state, which every role may read.
ALTER ROLE headrace_catalog LOGIN NOINHERIT CONNECTION LIMIT 20 PASSWORD :'catalog_password';
-- snapshot-responder and its tasks: a temporary slot for the exact LSN, and SELECT on what may be copied.
ALTER ROLE headrace_snapshot LOGIN REPLICATION CONNECTION LIMIT 50 PASSWORD :'snapshot_password';
ALTER ROLE headrace_snapshot SET default_transaction_read_only = on;
-- audit-writer: the trail, in a schema of its own, which nobody else reads unless you grant it.
ALTER ROLE headrace_audit LOGIN NOINHERIT CONNECTION LIMIT 20 PASSWORD :'audit_password';
CREATE SCHEMA IF NOT EXISTS headrace_audit AUTHORIZATION headrace_audit;

SELECT format('GRANT CONNECT ON DATABASE %I TO headrace_reader, headrace_catalog, headrace_snapshot,'
    ' headrace_audit', current_database())
\gexec

-- The tables that consumers may ask a snapshot of. Others' schemas: the same two lines with their name. Tables that
-- are made later by another role need ALTER DEFAULT PRIVILEGES FOR ROLE <that role>.
GRANT USAGE ON SCHEMA public TO headrace_snapshot;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO headrace_snapshot;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO headrace_snapshot;
