#!/bin/bash
# The steps of the official image's entrypoint, in its order: a cluster with the administrator's password, a server on its
# socket only, the database, the scripts of /docker-entrypoint-initdb.d, and the command. As there, a script that is not
# executable becomes part of this shell, with whatever it sets.
set -Eeo pipefail
if [ "$(id -u)" = 0 ]; then
    install -d -o postgres -g postgres -m 700 "$PGDATA"
    exec gosu postgres "$BASH_SOURCE" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username="${POSTGRES_USER:-postgres}" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD")
    printf '\nhost all all all scram-sha-256\n' >> "$PGDATA/pg_hba.conf"
    pg_ctl -D "$PGDATA" -o "-c listen_addresses='' ${*:2}" -w start
    psql=(psql -v ON_ERROR_STOP=1 -U "${POSTGRES_USER:-postgres}" --no-password --no-psqlrc)
    [ "$POSTGRES_DB" = postgres ] || echo "CREATE DATABASE \"$POSTGRES_DB\"" | "${psql[@]}" -d postgres
    for file in /docker-entrypoint-initdb.d/*; do
        case "$file" in
            *.sh) if [ -x "$file" ]; then "$file"; else . "$file"; fi ;;
            *.sql) "${psql[@]}" -d "$POSTGRES_DB" -f "$file" ;;
        esac
    done
    pg_ctl -D "$PGDATA" -m fast -w stop
fi
exec "$@"
