#!/bin/sh
# Prints a .env file for compose.yaml with random passwords: sh deploy/docker/env.sh > .env
# Each begins with a letter, because nats-server parses values from the environment in its configuration syntax.
set -eu
secret() { printf 'h%s' "$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n')"; }
for name in POSTGRES_PASSWORD PG_READER_PASSWORD PG_CATALOG_PASSWORD PG_SNAPSHOT_PASSWORD PG_AUDIT_PASSWORD PG_BACKUP_PASSWORD \
    NATS_ADMIN_PASSWORD NATS_READER_PASSWORD NATS_PUBLISHER_PASSWORD NATS_SNAPSHOT_PASSWORD NATS_SCHEMA_PASSWORD \
    NATS_TELEMETRY_PASSWORD NATS_ARCHIVER_PASSWORD NATS_AUDIT_PASSWORD NATS_LAKE_PASSWORD NATS_SQL_PASSWORD NATS_BACKUP_PASSWORD \
    NATS_SINK_PASSWORD NATS_MIRROR_PASSWORD \
    NATS_CONSUMER_PASSWORD GRAFANA_PASSWORD HEADRACE_SHUTDOWN_TOKEN HEADRACE_AUDIT_TOKEN \
    HEADRACE_LAKE_TOKEN; do
    echo "$name=$(secret)"
done
