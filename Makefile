# make demo      the main job: runs the experiments at the scale of a laptop and writes out/report.html
# make test      every quick test (under 10 minutes on 2 cores)
# make slow      the long tests, then make interop
# make interop   the tests beside other libraries, in .venv-interop
# make lint      formatter, linter and type checker
# Each target sets up its environment first if it is missing or out of date.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
INTEROP := .venv-interop
INTEROP_READY := $(INTEROP)/.ready
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto # one process for each core, one thread for each process

.PHONY: demo test slow interop lint clean

demo: $(READY)
	$(BIN)/stationary run --scale demo --jobs 2 --out out
	$(BIN)/stationary report --scale demo --out out

test: $(READY)
	$(PYTEST) -m "not slow"

slow: $(READY)
	$(PYTEST) -m slow
	$(MAKE) interop

interop: $(INTEROP_READY)
	OMP_NUM_THREADS=1 $(INTEROP)/bin/python -m pytest interop -o filterwarnings=default # other libraries may warn

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) $(INTEROP) out

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

$(INTEROP_READY): pyproject.toml interop/requirements.txt interop/constraints.txt
	$(PYTHON) -m venv $(INTEROP)
	$(INTEROP)/bin/python -m pip install --quiet --constraint interop/constraints.txt \
		--requirement interop/requirements.txt --editable .
	touch $(INTEROP_READY)
