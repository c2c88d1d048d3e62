#!/bin/sh
# The PostgreSQL image runs this once, when its data folder is new. Creates the suite's roles.
set -eu
psql -U "${POSTGRES_USER:-postgres}" -d "$POSTGRES_DB" -v "reader_password=$PG_READER_PASSWORD" \
    -v "catalog_password=$PG_CATALOG_PASSWORD" -v "snapshot_password=$PG_SNAPSHOT_PASSWORD" \
    -v "audit_password=$PG_AUDIT_PASSWORD" -v "backup_password=$PG_BACKUP_PASSWORD" -f /headrace/roles.sql
