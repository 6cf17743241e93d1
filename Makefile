# The two commands a newcomer needs are `make demo` and `make test`; both build the environment first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --quiet --disable-pip-version-check
READY  := $(VENV)/.ready

.PHONY: setup demo test test-slow lint format bench results clean

setup: $(READY)

# The library, and beside it two distributions that are not in its wheel: the paper and the benchmarks.
$(READY): pyproject.toml src/talos_paper/pyproject.toml benchmarks/pyproject.toml constraints.txt setup.py $(wildcard src/talos/kernels/core/*)
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt --editable '.[dev,bench,postgres,faiss,onnx,tune]' --editable src/talos_paper --editable benchmarks
	touch $(READY)

demo: $(READY)
	$(BIN)/talos demo

test: $(READY)
	$(BIN)/python -m pytest

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/talos bench

# Tables and pages of docs/results from the JSON files there; nothing is trained.
results: $(READY)
	$(BIN)/talos reproduce --pages --out docs/results

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
