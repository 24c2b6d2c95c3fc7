# make help lists the targets.  Everything runs in .venv, which the first target that needs it sets up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# One thread per process: more makes 2 cores fight (and torch reads it only at import).
export OMP_NUM_THREADS = 1
export MKL_NUM_THREADS = 1

.PHONY: help demo test check format bench clean
.DEFAULT_GOAL := help

help:  ## show this text
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 10

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)  ## plan, predict, perform and compare a GPT on 2 CPU devices; writes out/demo/
	@$(BIN)/regista demo --out out/demo

test: $(READY)  ## the whole test suite
	@$(BIN)/python -m pytest

check: $(READY)  ## lint, format, types, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY)  ## let ruff put the code in order
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format --quiet .

bench: $(READY)  ## speed, as ratios and medians with spread
	@$(BIN)/python -m experiments.bench

clean:  ## remove the virtual environment and all output
	rm -rf $(VENV) out build dist *.egg-info
