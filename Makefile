# `make demo` trains an example on two processes; `make test` runs every check that CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-long check format clean

demo: $(INSTALLED)
	$(BIN)/xl launch --cpu --num-processes 2 examples/digits.py

test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test-long: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m long

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch is named with its exact version so that pip takes the CPU build where one is offered.
$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
