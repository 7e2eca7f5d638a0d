#!/bin/sh
# A hot standby whose WAL comes from the safekeepers: copied from the primary at its first start, and never again.
# It runs as the user postgres. The copy gets its name when it is complete, so that one that broke off is made anew.
set -eu

password_file=$(dirname "$PGDATA")/standby.pass
umask 077
printf '*:*:*:standby:%s\n' "$(cat /run/secrets/standby_password)" > "$password_file"

if [ ! -s "$PGDATA/PG_VERSION" ]; then
    rm -rf "$PGDATA" "$PGDATA.new"
    PGPASSWORD=$(cat /run/secrets/walproxy_password)
    export PGPASSWORD
    pg_basebackup --dbname 'host=postgres user=walproxy' --pgdata "$PGDATA.new" --checkpoint fast
    unset PGPASSWORD
    cat >> "$PGDATA.new/postgresql.auto.conf" <<CONF
primary_conninfo = 'host=safekeeper1,safekeeper2,safekeeper3 port=5433 user=standby passfile=$password_file application_name=standby connect_timeout=5'
wal_receiver_timeout = 10s
wal_retrieve_retry_interval = 1s
CONF
    touch "$PGDATA.new/standby.signal"
    mv "$PGDATA.new" "$PGDATA"
fi

exec postgres
