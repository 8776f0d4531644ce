# make demo: everything from nothing, then the main job.  make test: lint, types, layers, tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export OMP_NUM_THREADS ?= 2

.PHONY: demo test test-slow lint bench site numbers numbers-check clean install
.DEFAULT_GOAL := demo

install: $(STAMP)
$(STAMP): setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[torch,cstorch,hf,report,place,study,test,docs]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/wse-sim compare gpt2-small --batch 112 --seq 1024 --phase training --out out/demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy wse_sim
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup

test-slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m slow
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "hypothesis or generated" --hypothesis-profile random

bench: $(STAMP)
	$(BIN)/python -m benchmarks.fabric --json

site: $(STAMP)  # the documentation in build/site; a warning is an error
	$(BIN)/mkdocs build --strict --quiet

numbers: $(STAMP)  # golden numbers: compute all, write docs/numbers.json
	$(BIN)/python -m benchmarks.numbers
	$(BIN)/python -m benchmarks.pages

numbers-check: $(STAMP)  # which numbers moved since the file was written?
	$(BIN)/python -m benchmarks.numbers --check

clean:
	rm -rf build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
