# make reproduce | smoke | test | lint | ui      each sets up .venv first
PYTHON ?= python3.11
BIN := $(CURDIR)/.venv/bin
export PATH := $(BIN):$(PATH)
export OMP_NUM_THREADS := 1

.PHONY: setup reproduce smoke test lint ui reference clean
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

lint: setup
	ruff check .
	ruff format --check .
	mypy
	lint-imports
	snakefmt --check workflow
	snakemake --lint > /dev/null

ui: setup
	estr ui

# refresh the committed copy of the laptop results
reference: setup
	snakemake docs/results/laptop/README.md --forcerun reference

clean:
	rm -rf .venv results figures logs .snakemake
