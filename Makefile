# Headrace. `make run` and `make test` need python3 (3.11 or newer) and the network, nothing else.

PYTHON ?= python3
BIN := .venv/bin
# protoc looks for its plugins on the path
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help run test models prometheus check locks sbom elastic checkov protos bench clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

run: .venv/stamp-standalone models ## install, fetch the models, start the suite, ask a first question; ONESHOT=1 stops then
	$(BIN)/headrace demo $(if $(ONESHOT),--once)

test: .venv/stamp-dev models prometheus ## install, fetch the models, every check and every test
	$(MAKE) check
	$(BIN)/pytest

check: .venv/stamp-dev ## lint, format, types, import rules, contract
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/protos.py check

models: .venv/stamp-standalone ## fetch and convert the models that the suite and its tests use
	$(BIN)/headrace models add smollm2
	$(BIN)/headrace models add minilm

prometheus: .venv/stamp-venv ## fetch Prometheus and Alertmanager for the tests that use them, where apt-get is
	$(BIN)/python tools/prometheus.py

locks: .venv/stamp-dev ## write the images' lock files; UPGRADE=1 takes the newest versions
	deploy/docker/lock.sh

sbom: .venv/stamp-dev ## write build/sbom/TARGET.json, the bill of materials of an image; TARGET=gateway by default
	rm -rf build && mkdir -p build/sbom
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/sbom/wheel .
	deploy/docker/install.sh $(or $(TARGET),gateway) build/sbom/environment build/sbom/wheel/*.whl
	deploy/docker/sbom.sh build/sbom/environment build/sbom/$(or $(TARGET),gateway).json

elastic: .venv/stamp-dev prometheus ## the test in which executors follow a load that doubles and halves; takes a minute
	HEADRACE_ELASTIC=1 $(BIN)/pytest tests/deploy/test_elastic.py

checkov: .venv/stamp-dev ## render the chart's value sets and run checkov over them and the Dockerfile, in an environment of its own
	rm -rf build/chart && $(BIN)/python tools/render_chart.py build/chart
	$(PYTHON) -m venv build/checkov && $(BIN)/uv pip install --quiet --python build/checkov/bin/python checkov
	build/checkov/bin/checkov --quiet --compact --config-file deploy/helm/checkov.yml --directory build/chart
	build/checkov/bin/checkov --quiet --compact --framework dockerfile --skip-check CKV_DOCKER_7 --file deploy/docker/Dockerfile

protos: .venv/stamp-dev ## write the stubs from protos/
	$(BIN)/python tools/protos.py generate

bench: .venv/stamp-standalone ## measure; SCENARIO=name takes one, `headrace bench --help` lists them
	$(BIN)/headrace bench $(SCENARIO)

clean: ## remove the environment and what tools left
	rm -rf .venv build dist .*_cache src/*.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/stamp-venv:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	@touch $@

.venv/stamp-standalone: .venv/stamp-venv pyproject.toml
	$(BIN)/pip install --quiet -e '.[standalone]'
	@touch $@

.venv/stamp-dev: .venv/stamp-standalone
	$(BIN)/pip install --quiet -e '.[standalone]' --group dev  # resolved together: they share bounds on protobuf
	@touch $@
