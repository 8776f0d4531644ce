# make demo: everything from nothing, then the main job.  make test: lint, types, layers, quick tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --progress-bar off
export OMP_NUM_THREADS ?= 2
export NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING ?= 1  # unused colors are 5 % of the time that numba compiles
# Rewritten assertions and parsed sources are kept between runs, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-random lint bench site numbers numbers-check clean install
.DEFAULT_GOAL := demo

install: $(STAMP)
$(STAMP): setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "wse-sim: updating pip"
	@$(PIP) --upgrade pip
	@echo "wse-sim: installing PyTorch (most of the time of this target)"
	@$(PIP) torch==2.13.0
	@echo "wse-sim: installing wse_sim with its extras (about a minute)"
	@PYTHONWARNINGS=ignore $(PIP) -e '.[torch,cstorch,hf,report,place,study,serve,test,docs]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/wse-sim compare gpt2-small --batch 112 --seq 1024 --phase training --out out/demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m benchmarks.prose
	$(BIN)/mypy --num-workers 2 wse_sim

# Quick tests are for every commit; all of them, with the same generated cases each time, for every push; random ones
# draw new cases and are for those who look for faults.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder
test: lint
	$(PYTEST)

test-all: $(STAMP)
	WSE_SIM_TESTS=all $(PYTEST) -m "" --timeout 1500

test-random: $(STAMP)
	WSE_SIM_TESTS=random $(PYTEST) -m "hypothesis or generated or slow"

bench: $(STAMP)
	$(BIN)/python -m benchmarks.fabric --json

site: $(STAMP)  # the documentation in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

numbers: $(STAMP)  # graphs of the shipped models; golden numbers: compute all, write docs/numbers.json
	$(BIN)/python -m benchmarks.shipped_graphs
	$(BIN)/python -m benchmarks.numbers
	$(BIN)/python -m benchmarks.pages

numbers-check: $(STAMP)  # which numbers moved since the file was written? which pictures and tables are older than their sources?
	-$(BIN)/python -m benchmarks.stale
	-$(BIN)/python -m benchmarks.shipped_graphs --check
	$(BIN)/python -m benchmarks.numbers --check

clean:
	rm -rf build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
