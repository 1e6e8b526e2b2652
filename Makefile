PYTHON  ?= python3
VENV    ?= .venv
WORKERS ?= 3
BIN     := $(VENV)/bin

.PHONY: demo test test-fast check docs lock install install-dev bench chaos fuzz clean

demo: install  ## the shipped model through every stage, and the matrix
	$(BIN)/haloctl submit demo --wait

test: install-dev check  ## all checks and all tests
	$(BIN)/python -m compileall -q haloctl orchestrator workers jobs db tests  # or each of their hundreds of processes does
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-fast: install-dev  ## unit tests, and what needs neither a server nor long-running processes
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests/unit

check: docs  ## what needs no test to be run
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

docs: install-dev  ## the documentation as a site, in docs/_build/html; warnings are errors
	$(BIN)/sphinx-build -q -W -b html docs docs/_build/html

bench: install-dev  ## speed, as ratios against something else in the same run
	OMP_NUM_THREADS=1 $(BIN)/pytest -m benchmark tests/performance -s

chaos: install-dev  ## hundreds of kills of everything in a cluster of network namespaces; takes root
	OMP_NUM_THREADS=1 $(BIN)/pytest -m chaos tests/cluster -s

fuzz: install-dev  ## thousands of job files, checkpoints, imports and queries that nobody would write, with figures
	OMP_NUM_THREADS=1 $(BIN)/pytest -m fuzz tests/fuzz -s

lock:  ## pins with hashes what install.sh installs, after a change of dependencies or of constraints.txt
	infra/lock.sh $(BIN)/uv

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

REQUIREMENTS := pyproject.toml constraints.txt infra/install.sh $(wildcard infra/requirements/*.txt)

$(VENV)/.installed: $(REQUIREMENTS)
	infra/install.sh "$(PYTHON)" "$(VENV)" .
	touch $@

$(VENV)/.installed-dev: $(REQUIREMENTS)
	infra/install.sh "$(PYTHON)" "$(VENV)" '.[dev,postgres]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache docs/_build docs/reference/commands.md
