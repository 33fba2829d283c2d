# make reproduce | smoke | test | lint | ui      each sets up .venv first; with LOCKED=1 from environments/laptop.lock
# make lock | audit      pins and hashes of every package, and what is known against them
# make cluster-env | test-cluster | test-cluster-fast      the verl engine on a CPU, in environments of its own
PYTHON ?= python3.11
BIN := $(CURDIR)/.venv/bin
export PATH := $(BIN):$(PATH)
export OMP_NUM_THREADS := 1

CLUSTER := verl sglang-0.5.12 sglang-0.5.23
VERL := $(CURDIR)/.venv-verl/bin/python -m pytest -p no:cacheprovider tests/cluster/verl

PIP := $(BIN)/python -m pip install --quiet --no-compile
LOCK := environments/laptop.lock
TOOLS := $(CURDIR)/.venv-tools
# where uv finds the CPU build of torch: a folder of wheels, or PyTorch's own index
UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
TORCH := $(if $(UV_FIND_LINKS),--find-links $(UV_FIND_LINKS) --no-emit-find-links,--torch-backend cpu)

.PHONY: setup reproduce smoke test lint ui reference lock audit clean cluster-env test-cluster test-cluster-fast
.DEFAULT_GOAL := reproduce

setup: $(if $(LOCKED),.venv/locked,.venv/installed)

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) --editable ".[dev]"
	touch $@

# nothing but what the lock names: what was installed before is removed
.venv/locked: pyproject.toml $(LOCK)
	$(PYTHON) -m venv --clear .venv
	$(PIP) --require-hashes --requirement $(LOCK)
	$(PIP) --no-deps --no-build-isolation --editable .
	touch .venv/installed $@

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

$(TOOLS)/installed:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet uv==0.13.9 pip-audit==2.10.1
	touch $@

# what is in the lock already stays, as far as pyproject.toml allows
lock: $(TOOLS)/installed
	echo "torch==2.13.0+cpu" | $(TOOLS)/bin/uv pip compile pyproject.toml --extra dev --override - $(TORCH) \
		--python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes \
		--quiet --no-annotate --no-header --no-emit-index-url --output-file $(LOCK)

# strict: a package that nobody knew about is a failure, not a pass; the advisories are those of torch's plain version
audit: $(TOOLS)/installed
	sed 's/+cpu//' $(LOCK) > $(TOOLS)/locked.txt
	$(TOOLS)/bin/pip-audit --strict --disable-pip --no-deps --requirement $(TOOLS)/locked.txt --format markdown --aliases

clean:
	rm -rf .venv .venv-verl .venv-sglang-* .venv-tools results figures logs .snakemake
