# make demo   the main job: draws the figures into out/
# make test   every quick test (under 10 minutes on 2 cores)
# make slow   the long tests
# make lint   formatter, linter and type checker
# Each target sets up .venv first if it is missing or out of date.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto # one process for each core, one thread for each process

.PHONY: demo test slow lint clean

demo: $(READY)
	$(BIN)/stationary run --out out

test: $(READY)
	$(PYTEST) -m "not slow"

slow: $(READY)
	$(PYTEST) -m slow

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) out

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)
