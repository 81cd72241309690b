# Everything sets itself up: `make demo` and `make test` need Python 3.11+, pip and a C++ compiler.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NATIVE := CMakeLists.txt $(wildcard src/fedmpdd/directions/native/*)

.PHONY: demo test lint bench neon clean

demo: $(VENV)/.installed
	$(BIN)/fedmpdd demo

test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed
	$(BIN)/fedmpdd bench codec

# Two steps, so that a change of the kernels rebuilds the package alone. torch goes first: packages that ask for
# an open range of it are then content with the one that is there.
$(VENV)/.requirements: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	    $$($(BIN)/python tools/requirements.py demo dev)
	touch $@

$(VENV)/.installed: $(VENV)/.requirements $(NATIVE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf $(VENV) build
