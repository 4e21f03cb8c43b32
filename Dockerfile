# syntax=docker/dockerfile:1
# Two stages: the first builds wheels, the second has nothing but Python, the wheels' contents and one user.

# `web`: web_fetch finds the article in a page.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY proxy ./proxy
RUN python -m venv /opt/toolproxy \
 && /opt/toolproxy/bin/pip install --no-cache-dir --disable-pip-version-check '.[mcp,otel,redis,web]'

FROM python:3.11-slim
# tini is the first process: it hands signals on from the first moment, and buries children that tools leave behind.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --no-create-home --uid 10001 toolproxy
COPY --from=build /opt/toolproxy /opt/toolproxy
COPY config.yaml /etc/toolproxy/config.yaml
ENV PATH=/opt/toolproxy/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TOOLPROXY_CONFIG=/etc/toolproxy/config.yaml \
    TOOLPROXY_HOST=0.0.0.0 \
    TOOLPROXY_PORT=8080
USER toolproxy
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 \
  CMD ["python", "-c", "import os, urllib.request as u; port = os.environ.get('TOOLPROXY_PORT', ''); u.urlopen(f'http://127.0.0.1:{port if port.isdecimal() else 8080}/healthz', timeout=2)"]
ENTRYPOINT ["tini", "--"]
CMD ["toolproxy", "serve"]
