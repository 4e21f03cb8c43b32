# Builds the image in three steps: the dependencies, the package, and both on a plain Python without pip.
# `make image` builds it with podman, docker or buildah; BASE is any image that has Python 3.11 or later with its venv, and Debian's apt.
ARG BASE=python:3.13-slim

# --- The dependencies of requirements.lock, in a layer that changes only with that file.
FROM ${BASE} AS dependencies
# Debian keeps only the newest version of a package, so tini has none here.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends tini \
 && rm -rf /var/lib/apt/lists/*
COPY requirements.lock requirements-build.lock /src/
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r /src/requirements-build.lock \
 && python -m venv --without-pip /opt/toolproxy \
 && /opt/build/bin/pip --python /opt/toolproxy/bin/python install \
      --no-cache-dir --no-compile --require-hashes --only-binary :all: -r /src/requirements.lock \
 && find /opt/toolproxy -type d -name tests -prune -exec rm -r {} + \
 && python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/toolproxy/lib

# --- The package, installed below /package so that it can be a layer of its own.
FROM dependencies AS package
COPY pyproject.toml README.md LICENSE config.yaml .env.example config.schema.json sbom.cdx.json deploy/healthcheck /src/
COPY docs/case.schema.json /src/docs/
COPY proxy /src/proxy
# Modes are set here because those of a checkout depend on its umask.
RUN /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /src/dist /src \
 && /opt/build/bin/pip --python /opt/toolproxy/bin/python install \
      --no-compile --no-deps --root /package /src/dist/*.whl \
 && python -m compileall -q -j 0 --invalidation-mode unchecked-hash /package \
 && install -D -m 0644 --target-directory /package/etc/toolproxy /src/config.yaml /src/config.schema.json \
 && install -D -m 0755 /src/healthcheck /package/usr/local/bin/healthcheck

# --- The image.
FROM ${BASE}
# Official Python images have no compiled standard library, and a read-only container could not keep one: each start would
# compile it again. A container that runs with another user id (as in OpenShift) belongs to group 0.
# The user is written by hand because useradd also writes the date, which would change the image's bytes every day.
RUN stdlib=$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))') \
 && rm -rf "$stdlib/ensurepip" "$stdlib"/site-packages/* /usr/share/python-wheels /usr/local/bin/pip* \
 && python -m compileall -q -j 0 --invalidation-mode unchecked-hash \
      -x '/(idlelib|lib2to3|test|tests|tkinter|turtledemo)/' "$stdlib" \
 && echo 'toolproxy:x:10001:' >> /etc/group \
 && echo 'toolproxy:x:10001:10001::/var/lib/toolproxy:/usr/sbin/nologin' >> /etc/passwd \
 && install -d -o 10001 -g 0 -m 0770 /var/lib/toolproxy
# tini is the first process: it passes signals on from the first moment, and reaps processes that tools leave behind.
COPY --from=dependencies /usr/bin/tini-static /usr/bin/tini
COPY --from=dependencies /opt/toolproxy /opt/toolproxy
COPY --from=package /package /
ENV PATH=/opt/toolproxy/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TOOLPROXY_CONFIG=/etc/toolproxy/config.yaml \
    TOOLPROXY_HOST=0.0.0.0 \
    TOOLPROXY_PORT=8080 \
    TOOLPROXY_STATE_URL=sqlite:////var/lib/toolproxy/state.db \
    TOOLPROXY_CLIENTS_FILE=/var/lib/toolproxy/clients.yaml
USER 10001:10001
VOLUME /var/lib/toolproxy
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["healthcheck"]
ENTRYPOINT ["tini", "--"]
CMD ["toolproxy", "serve"]
ARG VERSION=unknown
LABEL org.opencontainers.image.title="toolproxy" \
      org.opencontainers.image.description="An OpenAI-compatible reverse proxy that runs tools transparently" \
      org.opencontainers.image.licenses="MIT AND BSD-2-Clause" \
      org.opencontainers.image.version="${VERSION}"
