# make reproduce | smoke | test | lint | ui      each sets up .venv first
# make cluster-env | test-cluster | test-cluster-fast      the verl engine on a CPU, in environments of its own
PYTHON ?= python3.11
BIN := $(CURDIR)/.venv/bin
export PATH := $(BIN):$(PATH)
export OMP_NUM_THREADS := 1

CLUSTER := verl sglang-0.5.12 sglang-0.5.23
VERL := $(CURDIR)/.venv-verl/bin/python -m pytest -p no:cacheprovider tests/cluster/verl

.PHONY: setup reproduce smoke test lint ui reference clean cluster-env test-cluster test-cluster-fast
.DEFAULT_GOAL := reproduce

setup: .venv/installed

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[dev]"
	touch $@

# Table 1 first
reproduce: setup
	snakemake main_results
	snakemake all
	@echo "report: results/laptop/report.html    MLflow: make ui"

smoke: setup
	snakemake all --config scale=smoke
	@echo "report: results/smoke/report.html"

test: setup lint
	pytest

# one environment per set of pins; kept until their requirements change
cluster-env: $(CLUSTER:%=env-%)

env-%:
	tests/cluster/environments/build $*

# what takes minutes: losses, agent loops, every paper-scale command, one whole training
test-cluster-fast: env-verl
	$(VERL) -m "not slow"
	$(VERL)/test_training.py -k separate_async

# everything; tests/slurm needs root and Slurm, and is skipped without
test-cluster: setup cluster-env
	$(VERL)
	$(CURDIR)/.venv-sglang-0.5.12/bin/python -m pytest -p no:cacheprovider tests/cluster/sglang
	$(CURDIR)/.venv-sglang-0.5.23/bin/python -m pytest -p no:cacheprovider tests/cluster/sglang
	pytest -m cluster tests/slurm

lint: setup
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	snakefmt --check workflow
	snakemake --lint > /dev/null
	snakemake --lint --config scale=paper > /dev/null

ui: setup
	estr ui

# refresh the committed copy of the laptop results
reference: setup
	snakemake docs/results/laptop/README.md --forcerun reference

clean:
	rm -rf .venv .venv-verl .venv-sglang-* results figures logs .snakemake
