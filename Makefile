# The two commands a newcomer needs are `make demo` and `make test`; both build the environment first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PIP    := pip --quiet --disable-pip-version-check
SMOKE  := build/smoke
TOOLS  := build/release

.PHONY: setup demo test test-slow test-pythons test-lowest test-loggers lint format docs bench results wheel smoke fuzz torture clean

setup: $(READY)

# The library, and beside it two distributions that are not in its wheel: the paper and the benchmarks.
$(READY): pyproject.toml setup.py constraints.txt src/talos_paper/pyproject.toml benchmarks/pyproject.toml \
		$(wildcard src/talos/kernels/core/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) install --constraint constraints.txt --editable '.[dev,docs,bench,postgres,faiss,onnx,tune,serve]' \
		--editable src/talos_paper --editable benchmarks
	touch $(READY)

demo: $(READY)
	$(BIN)/talos demo

# Two processes with a thread each: most tests are too small for two threads. A file's tests stay in one process.
TEST_JOBS ?= 2
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(TEST_JOBS) --dist loadfile

test-slow: $(READY)
	$(BIN)/python -m pytest --timeout 7200 -m slow

# The short pass of commands on the other Pythons of this machine, with torch: several GB where the index has no CPU build.
test-pythons:
	.ci/pythons --with-torch

# The same with the lowest version of every dependency that pyproject.toml allows; torch is that of constraints.txt.
test-lowest: $(READY)
	rm -rf build/lowest build/wheels
	$(BIN)/$(PIP) wheel --no-deps --wheel-dir build/wheels .
	$(PYTHON) -m venv build/lowest
	$(BIN)/python .ci/lowest.py > build/lowest/pins.txt
	build/lowest/bin/$(PIP) install --only-binary :all: --requirement build/lowest/pins.txt
	build/lowest/bin/$(PIP) install --no-deps build/wheels/*.whl
	build/lowest/bin/python .ci/short_pass.py

# MLflow, Weights & Biases and TensorBoard, 200 MB that the other tests do without: their tests skip in `make test`.
test-loggers: $(READY)
	$(BIN)/$(PIP) install --constraint constraints.txt --editable '.[tensorboard,mlflow,wandb]' huggingface_hub
	$(BIN)/python -m pytest tests/training/test_loggers.py tests/e2e/test_logger_commands.py \
		tests/report/test_card.py tests/e2e/test_card_command.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, into build/site. Needs no network; a warning, a broken link or a notebook that fails is an error. Notebooks are
# run once and kept in build/notebooks until their text changes; DOCS_OPTIONS='-D nb_execution_mode=force' runs them again.
DOCS_OPTIONS ?=
docs: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going $(DOCS_OPTIONS) docs build/site

bench: $(READY)
	$(BIN)/talos bench

# Tables and pages of docs/results from the results stored there; nothing is trained.
results: $(READY)
	$(BIN)/talos reproduce --pages --out docs/results

# The source archive, and from it the wheel of this machine, in dist/. auditwheel says which Linux systems the wheel is for.
wheel:
	rm -rf dist $(TOOLS)
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/$(PIP) install --requirement .ci/release.txt
	$(TOOLS)/bin/python -m build --outdir $(TOOLS)/built
	PATH="$(abspath $(TOOLS))/bin:$$PATH" $(TOOLS)/bin/auditwheel repair --wheel-dir dist $(TOOLS)/built/*.whl
	cp $(TOOLS)/built/*.tar.gz dist
	$(TOOLS)/bin/twine check --strict dist/*
	$(TOOLS)/bin/check-wheel-contents dist/*.whl

# Installs the wheel, and nothing else of this tree, into an environment of its own and uses it there. No compiler is on the path.
smoke: wheel
	rm -rf $(SMOKE)
	$(PYTHON) -m venv $(SMOKE)/venv
	cd $(SMOKE) && export PATH="$$PWD/venv/bin" && \
		$(PIP) install --constraint ../../constraints.txt "$$(echo ../../dist/*.whl)[serve]" && \
		python ../../.ci/smoke.py

# The compiled core against the readable version on random input, longer than `make test` does.
fuzz: $(READY)
	TALOS_FUZZ_CALLS=10000 $(BIN)/python -m pytest --timeout 0 tests/kernels/test_fuzz.py

# Kills, failing disks, damaged files, processes at once, and a soak: each row to its full number of tries, or for so many
# seconds, from a seed. The progress file lets a run that was stopped go on. `make test` has a short version of each.
TALOS_TORTURE_SECONDS  ?= 3600
TALOS_TORTURE_SEED     ?= 0
TALOS_TORTURE_PROGRESS ?= build/torture.json
torture: $(READY)
	mkdir -p $(dir $(TALOS_TORTURE_PROGRESS))
	TALOS_TORTURE_SECONDS=$(TALOS_TORTURE_SECONDS) TALOS_TORTURE_SEED=$(TALOS_TORTURE_SEED) \
		TALOS_TORTURE_PROGRESS=$(TALOS_TORTURE_PROGRESS) RUST_BACKTRACE=0 \
		$(BIN)/python -m pytest --timeout 0 -s -m 'torture or not torture' tests/torture \
		tests/serving/test_torture.py tests/serving/test_schema.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/talos_paper/*.egg-info benchmarks/*.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
