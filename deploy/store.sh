#!/bin/sh
# SeaweedFS in one process, with the keys out of the secrets: it reads them from its environment only. The image's own
# entrypoint takes care of the data folder's owner, and of not running as root.
set -eu

AWS_ACCESS_KEY_ID=$(cat /run/secrets/store_access_key)
AWS_SECRET_ACCESS_KEY=$(cat /run/secrets/store_secret_key)
export AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY

# It calls itself by its name, because a container's address changes when it is made anew. -ip.bind: also on loopback,
# where the health check asks.
exec /entrypoint.sh mini -dir=/data -ip=store -ip.bind=0.0.0.0 -webdav=false
