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
.PHONY: help venv demo test test-pure test-all test-kubernetes campaign branches check fmt lock bench-env bench-quick bench bench-full bench-overhead bench-recovery bench-reproducible bench-checkpoint bench-checkpoint-systems bench-hosts bench-gpu bench-tables diagram clean

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

# Tests that train come one after the other, the rest beside them; see tests/side_by_side.py.
SIDE_BY_SIDE := -n auto --dist loadgroup

test: $(READY) ## every test but the slow ones
	$(BIN)/python -m pytest -m "not slow" $(SIDE_BY_SIDE) --durations=60 $(ARGS)

test-pure: $(READY) ## the pure tests but the slow ones: seconds, no Ray, no torch
	$(BIN)/python -m pytest tests/pure -m "not slow" $(ARGS)

test-all: $(READY) ## every test, slow ones included
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

KUBERNETES := $(addprefix tests/effects/test_,kube_client.py kube_autoscaler.py kuberay_files.py kuberay_commands.py deploying.py)
KUBERNETES += $(addprefix tests/cluster/test_,machines.py operator.py rayjob_operator.py submit.py ray_job.py)

test-kubernetes: $(READY) ## all tests of manifests, image and jobs, slow ones included; see docs/deploying.md for what they need
	$(BIN)/python -m pytest -rs $(KUBERNETES) $(ARGS)

campaign: $(READY) ## a hundred worlds of the protocol campaign, each with the faults of its seed: a minute
	$(BIN)/elastic simulate campaign --seeds 100 --jobs $$(nproc) $(ARGS)

branches: $(READY) ## fails if a line or branch of the pure half is taken by no pure test
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

PEERS := torchft nvrx
BENCH := $(BIN)/python -m benchmarks.suite --out runs/bench

bench-env: $(patsubst %,.bench/%/.ready,$(PEERS)) ## environments of the peers in the recovery benchmark, each from requirements/bench-PEER.txt

.bench/%/.ready: requirements/bench-%.txt
	$(PYTHON) -m venv .bench/$*
	.bench/$*/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# What a bench that was killed has left is removed first, so that it takes nothing from this one.
bench-quick: $(READY) bench-env ## the peers side by side but NVRx, one kill and one hang each, under 8 min; needs root and ip
	$(BIN)/python -m benchmarks.hosts --clean
	$(BENCH) --plan quick $(ARGS)

bench: $(READY) bench-env ## the peers side by side, under 60 min; needs root and ip
	$(BIN)/python -m benchmarks.hosts --clean
	$(BENCH) $(ARGS)

bench-full: $(READY) bench-env ## the same, kills and hangs more often, storms of ten minutes, and with the peers' default settings: under 2.5 h
	$(BIN)/python -m benchmarks.hosts --clean
	$(BENCH) --plan full --storm-s 600 --minutes 140 $(ARGS)

bench-overhead: $(READY) ## what a step costs with and without this library
	$(BIN)/python -m benchmarks.overhead --out runs/overhead.json $(ARGS)

bench-recovery: $(READY) ## what faults cost; needs root and ip
	$(BIN)/python -m benchmarks.hosts --clean
	$(BIN)/python -m benchmarks.recovery --scenario all --out runs/recovery.json $(ARGS)

bench-reproducible: $(READY) ## what a step costs with sums in one fixed order
	$(BIN)/python -m benchmarks.reproducible --out runs/reproducible.json $(ARGS)

bench-checkpoint: $(READY) ## what a snapshot costs
	$(BIN)/python -m benchmarks.checkpoint --out runs/checkpoint.json $(ARGS)

bench-checkpoint-systems: $(READY) ## what a checkpoint costs, beside other ways to keep one
	$(BIN)/python -m benchmarks.checkpoint_systems --out runs/checkpoint_systems.json $(ARGS)

bench-hosts: $(READY) ## what a host monitor costs
	$(BIN)/python -m benchmarks.host_monitor --out runs/host_monitor.json $(ARGS)

bench-gpu: $(READY) ## what this library costs on a GPU; needs one
	$(BIN)/python -m benchmarks.gpu --out runs/gpu.json $(ARGS)

bench-tables: $(READY) ## tables, plots and the README's section from benchmarks/results; needs matplotlib
	$(BIN)/python -m benchmarks.render $(ARGS)

diagram: $(READY) ## write the state diagram into ARCHITECTURE.md, the tables of policies, knobs and commands into their pages
	$(BIN)/python tools/diagram.py --write ARCHITECTURE.md
	$(BIN)/python tools/policy_table.py --write docs/policies.md
	$(BIN)/python tools/knobs.py --write docs/configuration.md
	$(BIN)/python tools/commands.py --write docs/commands.md

clean: ## remove .venv, .bench, build products and caches (runs/ stays)
	rm -rf $(VENV) .bench build dist .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
