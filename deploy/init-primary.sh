#!/bin/sh
# Prepares a new PostgreSQL for walproxy. The official image runs it once, on an empty data folder, through a
# temporary server that listens on its own socket only.
#
# synchronous_standby_names is written for the server's next start and stays off during this one: with a standby
# that cannot connect yet, the first commit of an init script would wait for ever. It is not a command-line flag
# either, because a flag could not be changed by a reload when an operator has to.
set -eu

# The password of the role walproxy: itself, or the file it stands in.
password=${WALPROXY_PASSWORD:-$(cat "${WALPROXY_PASSWORD_FILE:-/run/secrets/walproxy_password}")}

psql --no-psqlrc --set ON_ERROR_STOP=1 --set password="$password" \
     --username "${POSTGRES_USER:-postgres}" --dbname postgres <<'SQL'
CREATE ROLE walproxy LOGIN REPLICATION PASSWORD :'password';
GRANT pg_monitor TO walproxy;
ALTER SYSTEM SET synchronous_standby_names = 'walproxy';
SQL

# The image lets every host in, but in pg_hba.conf "all" databases does not cover replication.
echo 'host replication walproxy samenet scram-sha-256' >> "$PGDATA/pg_hba.conf"
