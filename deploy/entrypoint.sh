#!/bin/bash
# What the image runs first: takes secrets out of files, for libraries that read them from the environment only.
# NAME_FILE=/run/secrets/name becomes NAME, for the names below; then the command runs. walproxy and safekeeper read the
# files of their own secrets themselves (secret_file, pg_users), and notice at SIGHUP that they have changed.
set -euo pipefail

for name in AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AZURE_STORAGE_ACCOUNT_KEY PGPASSWORD; do
    variable=${name}_FILE
    file=${!variable-}
    if [ -n "$file" ]; then
        if [ ! -r "$file" ]; then
            echo "entrypoint: cannot read $file, which $variable names, as user $(id -u): make it readable for that user" >&2
            exit 3
        fi
        export "$name=$(<"$file")"
        unset "$variable"
    fi
done

exec "$@"
