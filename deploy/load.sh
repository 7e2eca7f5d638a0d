#!/bin/sh
# A modest, steady load in a database of its own: pgbench's transactions, LOAD_RATE of them a second.
set -eu

PGPASSWORD=$(cat /run/secrets/postgres_password)
export PGPASSWORD PGHOST=postgres PGUSER=postgres

ask() { psql --no-psqlrc --quiet --tuples-only --no-align --dbname "$1" --command "$2"; }

if [ -z "$(ask postgres "SELECT 1 FROM pg_database WHERE datname = 'load'")" ]; then
    ask postgres 'CREATE DATABASE load'
fi
# The primary keys come last: without them the tables were not finished, and are made anew.
if [ -z "$(ask load "SELECT 1 FROM pg_class WHERE relname = 'pgbench_accounts_pkey'")" ]; then
    pgbench --initialize --scale 1 --quiet load
fi

# A year: when it ends, or loses its sessions with PostgreSQL, it is started again.
exec pgbench --no-vacuum --client 2 --rate "$LOAD_RATE" --time 31536000 --progress 60 load
