# make help lists the targets.  Everything runs in .venv, which the first target that needs it sets up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# One thread per process: more makes 2 cores fight (and torch reads it only at import).
export OMP_NUM_THREADS = 1
export MKL_NUM_THREADS = 1
# Compiled modules are kept: the processes that tests start would compile the product again, a second each.
unexport PYTHONDONTWRITEBYTECODE

# Tests run in so many processes at once, a file's one after the other in one of them: what a file makes once is made once.
WORKERS ?= 2
PYTEST  := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help demo test test-all test-experiments plans screens check format examples notebooks bench corpus fidelity gpu reproduce figures report paper mutation clean
.DEFAULT_GOAL := help

help:  ## show this text
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 18

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)  ## plan, predict, perform and compare a GPT on 2 CPU devices; writes out/demo/
	@$(BIN)/regista demo --out out/demo

test: $(READY)  ## every law on cheap cases and one case of every kind of fault, in under 5 minutes on 2 cores
	@$(PYTEST) -m "not thorough and not experiments"

test-all: $(READY)  ## every case of every law, in under 25 minutes on 2 cores
	@$(PYTEST) -m "not experiments"

test-experiments: $(READY)  ## smoke sizes of the experiments, the paper, pages in the browser
	@$(PYTEST) -m experiments

mutation: $(READY)  ## what share of 200 random faults the tests catch; hours, goes on where it was interrupted
	@nice -n 10 $(BIN)/python -m tests.mutation --faults 200 --seed 1 --out out/mutation.csv

plans: $(READY)  ## the committed Plans of the conformance matrix anew, after the planner has changed
	@$(BIN)/python -m pytest tests/conformance/test_committed_plans.py --update-plans

screens: $(READY)  ## the committed screens of the verbs anew, and those that the README shows
	@$(BIN)/python -m pytest tests/regista/one_screen/test_screens.py tests/regista/views/test_answer.py --update-screens

check: $(READY)  ## lint, format, types, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY)  ## let ruff put the code in order
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format --quiet .

examples: $(READY)  ## three complete trainings beside plain PyTorch on one device, some minutes; writes examples/results, examples/pictures
	@$(BIN)/python -m examples
	@$(BIN)/python -m experiments.claims --write

notebooks: $(READY)  ## the notebooks of examples/ anew, with what their cells show, half a minute
	@$(BIN)/python -m examples.notebooks

bench: $(READY)  ## speed, as ratios and medians with spread
	@$(BIN)/python -m experiments.benchmarks

# A machine with a GPU may be without network and have a torch of its own: the first Python that sees a device is taken, nothing is installed.
gpu:  ## every GPU test, measurement and figure, in 8 minutes; goes on where it was; writes out/gpu/
	@for python in $(BIN)/python $(PYTHON); do \
	  $$python -c "import sys, torch; sys.exit(not torch.cuda.is_available())" 2>/dev/null && exec $$python -m experiments.gpu --out out/gpu; \
	done; echo "no CUDA device: neither $(BIN)/python nor $(PYTHON) has a torch that sees one" >&2; exit 3

reproduce: $(READY)  ## every simulated figure from scratch; goes on where it was interrupted
	@$(BIN)/python -m experiments.reproduce

figures: $(READY)  ## all figures anew from the committed CSVs
	@$(BIN)/python -m experiments.reproduce --figures

report: $(READY)  ## pages for the browser of all experiments; writes out/report/
	@$(BIN)/regista report experiments --out out/report

paper: $(READY)  ## the paper as PDF, from the committed CSVs; writes out/paper/
	@$(BIN)/python -m paper.build

corpus: $(READY)  ## models of transformers, torchvision and timm, planned in 3 ways and compared with one device; an hour, goes on where it was
	@$(BIN)/python -c "import transformers, torchvision, timm" 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,corpus]'
	@nice -n 5 $(BIN)/python -m experiments.corpus

fidelity: $(READY)  ## published iteration times against the simulator's: plans, calibration, scores (resumable; see experiments/fidelity)
	@$(BIN)/python -m experiments.fidelity
	@$(BIN)/python -m experiments.fidelity.jobs
	@$(BIN)/python -m experiments.fidelity.jobs.unseen

clean:  ## remove the virtual environment and all output
	rm -rf $(VENV) out build dist *.egg-info
