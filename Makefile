# The verbs of this repository. A fresh machine needs make and Python 3.11 or newer with venv.

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCK := requirements/test.lock

export RAY_USAGE_STATS_ENABLED := 0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test test-pure test-all branches check fmt lock bench-overhead bench-recovery bench-reproducible bench-checkpoint bench-hosts diagram clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "  PYTHON=/path/to/python3.11 picks the interpreter; ARGS='...' is passed on to the command."

venv: $(READY) ## create .venv from the lock, with the package installed in place

$(READY): pyproject.toml $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(PYTHON) is missing or older than Python 3.11 (found: $$($(PYTHON) --version 2>&1))." >&2; \
	  echo "Name a newer one: make $(or $(MAKECMDGOALS),venv) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "error: $(PYTHON) has no venv module; install it (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(LOCK)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY) ## train a small model on this machine, break it, and watch it go on
	$(BIN)/elastic demo --out runs/demo $(ARGS)

test: $(READY) ## every test but the slow ones
	$(BIN)/python -m pytest -m "not slow" --durations=60 $(ARGS)

test-pure: $(READY) ## the pure tests but the slow ones: seconds, no Ray, no torch
	$(BIN)/python -m pytest tests/pure -m "not slow" $(ARGS)

test-all: $(READY) ## every test, slow ones included
	$(BIN)/python -m pytest $(ARGS)

branches: $(READY) ## lines and branches of the pure half that no pure test takes
	$(BIN)/python tools/branches.py $(ARGS)

check: $(READY) ## style, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(READY) ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(READY) ## resolve the newest dependencies into requirements/test.lock
	$(BIN)/python requirements/lock.py

bench-overhead: $(READY) ## what a step costs with and without this library
	$(BIN)/python -m benchmarks.overhead --out runs/overhead.json $(ARGS)

bench-recovery: $(READY) ## what faults cost; needs root and ip
	$(BIN)/python -m benchmarks.recovery --scenario all --out runs/recovery.json $(ARGS)

bench-reproducible: $(READY) ## what a step costs with sums in one fixed order
	$(BIN)/python -m benchmarks.reproducible --out runs/reproducible.json $(ARGS)

bench-checkpoint: $(READY) ## what a snapshot costs
	$(BIN)/python -m benchmarks.checkpoint --out runs/checkpoint.json $(ARGS)

bench-hosts: $(READY) ## what a host monitor costs
	$(BIN)/python -m benchmarks.host_monitor --out runs/host_monitor.json $(ARGS)

diagram: $(READY) ## write the state diagram into ARCHITECTURE.md, the tables of policies, knobs and commands into their pages
	$(BIN)/python tools/diagram.py --write ARCHITECTURE.md
	$(BIN)/python tools/policy_table.py --write docs/policies.md
	$(BIN)/python tools/knobs.py --write docs/configuration.md
	$(BIN)/python tools/commands.py --write docs/commands.md

clean: ## remove .venv, build products and caches (runs/ stays)
	rm -rf $(VENV) build dist .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
