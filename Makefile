# make demo         the main job: runs the experiments at the scale of a laptop and writes out/report.html
# make test         every quick test (3 to 5 minutes on 2 cores)
# make slow         the long tests, then make interop
# make interop      the tests beside other libraries, in .venv-interop
# make arena        our heads beside other libraries' methods, in .venv-arena: tests, runs and report; it needs the data
# make lint         formatter, linter, type checkers, and who may import whom
# make types        pyright alone, the part of lint that checks that every public name has a type
# make docs         the site, in site/
# make dist         wheel and sdist in dist/, each installed into an empty environment and tried
# make test-min     the quick tests with the lowest versions that pyproject.toml allows, in .venv-min
# make test-latest  the quick tests with the newest versions of everything, in .venv-latest
# Each target sets up its environment first if it is missing or out of date.
# PYTHON=python3.13 make test-latest chooses the Python of a new environment. pip's own variables work too: with
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu it takes PyTorch without CUDA, 5 GB less.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
INTEROP := .venv-interop
INTEROP_READY := $(INTEROP)/.ready
ARENA := .venv-arena
ARENA_READY := $(ARENA)/.ready
MIN := .venv-min
MIN_READY := $(MIN)/.ready
LATEST := .venv-latest
EMPTY := .venv-dist
# A test that hangs is shown and fails after ten minutes, instead of never.
PATIENCE := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true
# One process for each core, one thread for each process; bytecode is kept, since tests start more than 50 processes.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto $(PATIENCE)
# Other versions of other libraries may warn; and the site is built with one set of versions.
QUICKLY := -m pytest -n auto -m "not slow" -o filterwarnings=default --ignore tests/docs/test_docs.py

.PHONY: demo test slow interop arena lint types docs dist test-min test-latest clean

demo: $(READY)
	$(BIN)/stationary run --scale demo --jobs 2 --out out
	$(BIN)/stationary report --scale demo --out out

test: $(READY)
	$(PYTEST) -m "not slow" --dist worksteal # half of the files each, whose fixtures are made once; who is done helps

slow: $(READY)
	$(PYTEST) -m slow
	$(MAKE) interop

interop: $(INTEROP_READY)
	OMP_NUM_THREADS=1 $(INTEROP)/bin/python -m pytest interop tests/inference/test_methods.py \
		tests/inference/test_joint.py tests/docs/test_snippets.py tests/lab/experiments/test_bo.py \
		tests/lab/experiments/test_experiments.py -k "interop or laplace or next_experiment or test_bo or reports[bo]" \
		-o filterwarnings=default $(PATIENCE) # other libraries may warn

arena: $(ARENA_READY)
	OMP_NUM_THREADS=1 $(ARENA)/bin/python -m pytest tests/lab/experiments/test_arena.py \
		tests/lab/experiments/test_arena_tables.py -o filterwarnings=default $(PATIENCE)
	OMP_NUM_THREADS=1 $(ARENA)/bin/stationary run arena --scale paper --out out
	$(ARENA)/bin/stationary report arena --scale paper --out out

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) types

types: $(READY) # pyright takes its libraries from the first python on the path
	PATH="$(CURDIR)/$(BIN):$$PATH" basedpyright
	PATH="$(CURDIR)/$(BIN):$$PATH" python tests/typing/completeness.py

docs: $(READY)
	$(BIN)/python -m mkdocs build --strict

dist: $(READY)
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	for package in dist/*.whl dist/*.tar.gz; do \
		$(PYTHON) -m venv --clear $(EMPTY) && \
		$(EMPTY)/bin/python -m pip install --quiet --constraint constraints.txt $$package && \
		$(EMPTY)/bin/python -I tests/smoke.py && echo "$$package installs and works" || exit 1; \
	done
	rm -rf $(EMPTY)

test-min: $(MIN_READY)
	OMP_NUM_THREADS=1 $(MIN)/bin/python $(QUICKLY)

test-latest:
	$(PYTHON) -m venv $(LATEST)
	$(LATEST)/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable ".[test]"
	$(LATEST)/bin/python -m pip list
	OMP_NUM_THREADS=1 $(LATEST)/bin/python $(QUICKLY)

clean:
	rm -rf $(VENV) $(INTEROP) $(ARENA) $(MIN) $(LATEST) $(EMPTY) out dist site

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint constraints.txt --editable ".[dev]" # not --quiet: it may download for minutes
	touch $(READY)

$(INTEROP_READY): pyproject.toml interop/requirements.txt interop/constraints.txt
	$(PYTHON) -m venv $(INTEROP)
	$(INTEROP)/bin/python -m pip install --quiet --constraint interop/constraints.txt \
		--requirement interop/requirements.txt --editable .
	touch $(INTEROP_READY)

$(ARENA_READY): pyproject.toml constraints-arena.txt
	$(PYTHON) -m venv $(ARENA)
	$(ARENA)/bin/python -m pip install --quiet --constraint constraints-arena.txt --editable ".[arena]" pytest
	touch $(ARENA_READY)

$(MIN_READY): pyproject.toml constraints-min.txt # on Python 3.10 or 3.11: the lowest versions know no later one
	$(PYTHON) -m venv $(MIN)
	$(MIN)/bin/python -m pip install --quiet --constraint constraints-min.txt --editable ".[test]"
	touch $(MIN_READY)
