# make run    start the service   make lint   ruff and mypy
# make test   run every check     make bench  measure, and render docs/benchmarks.md
# make demo   the library, in the terminal
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# How many files of tests run at the same time: most of them wait for servers.
JOBS ?= 2

# What tests start, each with its package.
PROGRAMS := redis-server:redis-server redis-cli:redis-tools curl:curl nginx:nginx-light h2load:nghttp2-client
# More options of `headgate serve`, as in: make run OPTIONS='--http-port 9000'
OPTIONS ?=

.PHONY: run demo test servers lint format bench plots clean
.DEFAULT_GOAL := test

run: $(VENV)/.serve
	@exec $(BIN)/headgate serve $(OPTIONS)

demo: $(VENV)/.serve
	@$(BIN)/python docs/examples/demo.py

test: lint servers
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -n $(JOBS) --dist loadfile
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered
	@$(BIN)/coverage report --include='src/headgate/core/*' --fail-under=100

# Tests run real servers and clients; missing ones come from Debian's packages, and their services are not started.
servers:
	@missing=; PATH="$$PATH:/usr/sbin"; \
	for each in $(PROGRAMS); do command -v $${each%:*} >/dev/null || missing="$$missing $${each#*:}"; done; \
	[ -z "$$missing" ] || { echo "installing$$missing ..."; \
	  { apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends $$missing; } >/dev/null; }

lint: $(VENV)/.dev
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format --quiet .

bench: PROGRAMS += wrk:wrk
bench: $(VENV)/.dev servers
	@$(BIN)/python -m benchmarks

plots: $(VENV)/.dev
	@$(BIN)/python docs/plots.py

clean:
	rm -rf $(VENV)

# A fresh Debian may have python3 without venv or pip; then its packages are added.
$(BIN)/python:
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { \
	  echo "installing python3-venv ..."; rm -rf $(VENV); \
	  { apt-get update -qq && apt-get install -y -qq python3-venv; } >/dev/null && $(PYTHON) -m venv $(VENV); }
	@$(BIN)/pip install --quiet --upgrade 'pip>=25.1'

$(VENV)/.serve: pyproject.toml | $(BIN)/python
	@echo "installing headgate ..."
	@$(BIN)/pip install --quiet --editable '.[server]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing headgate and what its tests need ..."
	@$(BIN)/pip install --quiet --editable '.[server]' --group test --group bench --group docs
	@touch $@ $(VENV)/.serve
