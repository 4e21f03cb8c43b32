# Everything needs only python3 (3.11 or later) and make; each target installs what it uses into .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo run test check format bench bench-peers clean

demo: .venv/.demo  ## a searched conversation through the proxy: no keys, no network
	@$(BIN)/toolproxy demo

run: .venv/.demo  ## the proxy with config.yaml
	@$(BIN)/toolproxy serve --config config.yaml

test: .venv/.dev  ## the whole test suite
	@$(BIN)/python -m pytest

check: .venv/.dev  ## format, lint, types, import contracts, tests with coverage
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --quiet tests/core
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --include 'proxy/core/*' --fail-under 100
	$(BIN)/coverage run -m pytest --quiet
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under 90

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/.dev  ## what a request, a chunk and an open stream cost, beside nginx; BENCH=--quick for a first look
	$(BIN)/python -m bench $(BENCH)

bench-peers: .venv/.dev .venv-peers/.done  ## the same with LiteLLM, in an environment of its own
	$(BIN)/python -m bench --peers $(BENCH)

.venv-peers/.done:
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check 'litellm[proxy]' opentelemetry-api \
		opentelemetry-sdk opentelemetry-exporter-otlp
	@touch $@

clean:
	rm -rf .venv .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* *.egg-info

.venv/.demo: pyproject.toml | .venv
	$(INSTALL) --editable '.[demo]'
	@touch $@

.venv/.dev: pyproject.toml | .venv
	$(INSTALL) --editable '.[demo,dev]'
	@touch $@

.venv:
	$(PYTHON) -m venv .venv
