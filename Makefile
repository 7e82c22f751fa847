# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# What `make demo` needs, and that with the tools of the developers.
USE    := $(VENV)/.installed-use
DEV    := $(VENV)/.installed-dev
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALL = $(PIP) --upgrade "pip>=25" && $(PIP) -c constraints.txt -e

.DEFAULT_GOAL := help
.PHONY: help demo test lint types contract stubs clean

help:
	@echo "make demo      install, then watch a small model speed a larger one up"
	@echo "make test      install, then run every test"
	@echo "make lint | types | contract    what CI checks besides the tests"
	@echo "make stubs     regenerate anydraft/v1 from protos/"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(USE): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) ".[cli,draft,export,verify]"
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) ".[dev]"
	@touch $(USE) $@

demo: $(USE)
	$(BIN)/anydraft demo

test: $(DEV)
	$(BIN)/python -m pytest

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy

contract: $(DEV)
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	./protos/generate.sh --check

stubs:
	./protos/generate.sh

clean:
	rm -rf $(VENV) .venv-stubs .mypy_cache .ruff_cache .pytest_cache
