# `make train` and `make test` are all a newcomer needs; both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup train test soak lint format clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## install everything into .venv, at the tested versions

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[all]"
	@touch $@

train: $(READY)  ## train TAAC on MountainCarContinuous until it is solved (about 7 minutes)
	$(BIN)/python agents/taac_continuous.py --env-id MountainCarContinuous-v0 --stop-at-score 90

test: $(READY)  ## run all tests, with the examples of docstrings and docs, on all cores
	@sh tests/install_browser.sh
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

soak: $(READY)  ## the long test: memory, kills, fuzzing, all other faults, a goal task
	$(BIN)/python tests/soak/soak.py

lint: $(READY)  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: $(READY)  ## speed of training beside Stable-Baselines3's SAC (docs/performance.md)
	$(BIN)/python benchmarks/training.py

clean:  ## remove .venv and everything that tools leave behind
	rm -rf $(VENV) *.egg-info build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
