# Two images from one file:
#   walproxy  both programs, `walproxy run ...` and `safekeeper run ...`; what `docker build .` makes
#   pipeline  the same with Java and Spark, for `walproxy pipeline ...`; ten times as large
#
# Dependencies come from the package index, or, where the build context has folders wheels/ and wheels-pipeline/, from
# there alone: a machine without an index can build the images, and what goes into them is exactly what was put there.
# They are installed before the sources are looked at, so that a change of these is built in seconds.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS dependencies
# A pattern that matches nothing copies nothing, and the file beside it keeps COPY from failing.
COPY pyproject.toml wheel[s] /wheels/
RUN python3 -m venv /opt/walproxy \
 && if ls /wheels/*.whl >/dev/null 2>&1; \
    then printf '[global]\nno-index = true\nfind-links = /wheels\n' >/opt/walproxy/pip.conf; \
    fi \
 && python3 -c "\
import tomllib; \
project = tomllib.load(open('/wheels/pyproject.toml', 'rb'))['project']; \
print(*project['dependencies'], sep='\n')" >/tmp/requirements.txt \
 && /opt/walproxy/bin/pip install --no-cache-dir --requirement /tmp/requirements.txt

FROM dependencies AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY safekeeper/ safekeeper/
COPY walproxy/ walproxy/
RUN /opt/walproxy/bin/pip install --no-cache-dir --no-deps --prefix=/opt/sources .

FROM ${BASE_IMAGE} AS walproxy
COPY --from=dependencies /opt/walproxy /opt/walproxy
COPY deploy/entrypoint.sh /usr/local/bin/walproxy-entrypoint
# The folders belong to the user before they become volumes: a new named volume takes its owner from here. None is declared
# a volume: each container of a proxy, which has no data, would leave a nameless one behind.
RUN groupadd --gid 10001 walproxy \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/safekeeper --no-create-home walproxy \
 && install --directory --owner=walproxy --group=walproxy --mode=0700 \
        /var/lib/safekeeper /var/lib/archive /var/lib/tables
COPY --from=build /opt/sources /opt/walproxy
# Inside a container a program listens for the others; what the host publishes of it is decided outside. A safekeeper does
# so only if it is given a secret, or another protection (docs/guide/security.md): else it stays on the container's loopback.
ENV PATH=/opt/walproxy/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SAFEKEEPER_DATA_DIR=/var/lib/safekeeper \
    SAFEKEEPER_LISTEN=0.0.0.0:5454 \
    SAFEKEEPER_HTTP=0.0.0.0:7676 \
    WALPROXY_HTTP=0.0.0.0:7667
EXPOSE 5454 7667 7676
USER walproxy
WORKDIR /var/lib/safekeeper

# Asks whichever program runs here. bash speaks HTTP well enough for one status line and costs 2 ms each time;
# a Python interpreter would cost 100 ms.
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 CMD ["bash", "-c", "\
    exec 3<>/dev/tcp/127.0.0.1/7667 || exec 3<>/dev/tcp/127.0.0.1/7676 || exit 1; \
    printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3; \
    read -r status <&3; \
    [[ $status == *' 200 '* ]]"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["walproxy-entrypoint"]
CMD ["walproxy", "--help"]

FROM dependencies AS dependencies-pipeline
COPY pyproject.toml wheels-pipelin[e] /wheels/
RUN python3 -c "\
import tomllib; \
project = tomllib.load(open('/wheels/pyproject.toml', 'rb'))['project']; \
print(*project['optional-dependencies']['pipeline'], sep='\n')" >/tmp/requirements.txt \
 && /opt/walproxy/bin/pip install --no-cache-dir --requirement /tmp/requirements.txt

FROM walproxy AS pipeline
USER root
RUN if ! command -v java >/dev/null; \
    then apt-get update \
      && apt-get install --yes --no-install-recommends default-jre-headless \
      && rm -rf /var/lib/apt/lists/*; \
    fi
COPY --from=dependencies-pipeline /opt/walproxy /opt/walproxy
USER walproxy
WORKDIR /var/lib/tables
# It serves nothing that could be asked; what it is about says its log.
HEALTHCHECK NONE
CMD ["walproxy", "pipeline", "--help"]

# The last stage is what a build without --target makes: the small one.
FROM walproxy
